"""What a family has beside its operators: packed parameters of gno, one function for the three forms of gemnet."""
