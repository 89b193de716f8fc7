// A library needs a source: this one's precompiled headers are used by others.
