"""Where other people's frameworks meet this library. Each file is imported by name, with what it needs installed.

``lightning`` and ``trainer`` hold callbacks for training, ``notebook`` rich display.
"""
