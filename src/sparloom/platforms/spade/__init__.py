"""The SPADE accelerator (ISCA'23) with the configuration space of COGNATE, simulated."""
