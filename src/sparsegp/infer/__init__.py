"""How statistics become a posterior: in one pass, block after block, or from samples."""
