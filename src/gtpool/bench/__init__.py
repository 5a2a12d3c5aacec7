"""How fast it is: our network beside PyG's own, on one machine, in one run."""
