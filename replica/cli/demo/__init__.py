"""`notary demo`: real requests, double spends, a killed active, and a separate process that checks every answer."""
