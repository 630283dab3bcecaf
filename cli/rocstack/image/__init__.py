"""From a resolved stack to an image: lock, build context, BuildKit, labels, report."""
