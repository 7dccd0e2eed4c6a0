"""What a user can get wrong. Every such mistake is an `InputError`, so a command line can print it as one line."""


class InputError(ValueError):
    """Something that came from outside (a file, an option, a name) is not usable.

    The message says what was expected, what came, and what to do, in one line.
    """
