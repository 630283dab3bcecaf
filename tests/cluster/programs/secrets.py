"""On each node, as root: whether a secret of the cluster can be seen where it must not be. One JSON value: finding, in
words without the secret itself."""

import base64
import glob
import json
import os
import re
import subprocess

KEYS = "/etc/rocstack/keys"
LAYERS = ("etc/munge/munge.key", "etc/ssh/ssh_host_*_key", "root/.ssh/id_*", "root/.docker/config.json")
PRIVATE = re.compile(r"BEGIN [A-Z ]*PRIVATE KEY")
LEAST = 16  # letters that a secret has


def docker(*words):
    done = subprocess.run(["docker", *words], capture_output=True, text=True, timeout=30)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout


def forms(data):
    """How a secret may be written in a text."""
    words = [base64.b64encode(data).decode(), data.hex()]
    if data.isascii():
        words += re.split(r"[\s:=]+", data.decode())
    return [word for word in words if len(word) >= LEAST]


secrets = {}
for folder, _, files in os.walk(KEYS):
    for name in files:
        with open(os.path.join(folder, name), "rb") as file:
            secrets[name] = forms(file.read())

places, users = {}, set()  # those that a job's user may have written
containers = docker("ps", "--all", "--quiet", "--filter=label=io.rocstack.service").split()
rows = json.loads(docker("inspect", *containers)) if containers else []
layers = set()
for row in rows:
    places[f"the container {row['Name'].strip('/')}"] = json.dumps([row["Config"], row["HostConfig"], row["Args"]])
    lower = (row.get("GraphDriver") or {}).get("Data") or {}
    layers.update((lower.get("LowerDir") or "").split(":")[1:])  # the first is the container's own
for image in sorted({row["Image"] for row in rows}):
    history = docker("history", "--no-trunc", "--format={{.CreatedBy}}", image)
    places[f"the history of image {image.partition(':')[2][:12]}"] = history + docker("image", "inspect", image)
for path in glob.glob("/proc/[0-9]*/cmdline"):
    place = f"the process list ({path.split('/')[2]})"
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_uid:
                users.add(place)
            places[place] = file.read().decode("utf-8", "ignore")
    except OSError:
        continue  # it has ended

found = [
    f"{name} in {place}"
    for place, text in places.items()
    for name, words in secrets.items()
    if any(word in text for word in words)
]
found += [f"a private key in {place}" for place in places.keys() - users if PRIVATE.search(places[place])]
found += [
    f"{path[len(layer) :]} in an image's layer"
    for layer in filter(None, layers)
    for pattern in LAYERS
    for path in glob.glob(os.path.join(glob.escape(layer), pattern))
    if os.path.isfile(path)  # a deleted file is a device there
]
print(
    json.dumps({"looked": len(places), "layers": len(layers), "secrets": sorted(secrets), "found": sorted(set(found))})
)
