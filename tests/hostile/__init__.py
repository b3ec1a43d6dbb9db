"""Bad input, one row each: what is called, and the sentence that it must be answered with."""
