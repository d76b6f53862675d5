"""Builds of kernel packages: content keys, the cache, the build process, and the environment that code under test gets."""
