"""`geonet app`: a local web page on which people draw densities, for paths and barycenters."""
