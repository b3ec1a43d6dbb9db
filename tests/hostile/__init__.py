"""Bad input, one row each: the call, and the error message that it must raise."""
