"""The suite `any`: eleven kinds of pairs that no network was trained on, on three grids."""
