"""`geonet app`: a local web page on which people draw two densities and see the path between."""
