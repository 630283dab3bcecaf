"""NICs from the controller's side: provider libraries, vendor bundles and the way one gets into an image."""
