"""What every kind of config is read, checked and described with."""
