"""Integrations with other frameworks. Import each file by name; its framework must be installed.

``lightning`` and ``trainer`` hold callbacks for training, ``notebook`` rich display.
"""
