"""The world outside, one module each: the container engine, Ansible, ssh."""
