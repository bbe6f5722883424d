"""The version of geonet."""

VERSION = "0.1.0"
