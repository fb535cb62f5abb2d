"""The live screen of a run, for POSIX terminals; Windows is not supported.

``fitness.unfit`` says whether a screen can be shown. ``display.Screen`` is the screen; it needs
rich, which comes with the extra ``live``.
"""
