"""What one host is to be, and the Ansible runs that make it so."""
