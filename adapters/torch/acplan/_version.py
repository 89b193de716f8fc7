"""The package's version: that of the program, in the file VERSION of the source tree."""

__version__ = "0.1.0"
