"""Engines that load exported files to check them: one file each."""
