"""What an image will hold: stack, NIC profile and overlay joined, and how the NIC's provider gets in."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from rocstack.base import image_names
from rocstack.base.document import Path_
from rocstack.base.errors import BadInput, CheckFailed, RocstackError, Where
from rocstack.base.text import listed
from rocstack.cluster import checks
from rocstack.image import render as renderer
from rocstack.image.context import BuildContext
from rocstack.nic import plugin_source, vendor_release, ways
from rocstack.nic.ways import ProviderPlan, is_worker
from rocstack.node.gate import UNFIT, gpu_lacks, judge
from rocstack.node.image_facts import ImageFacts
from rocstack.node.profile import NodeProfile
from rocstack.settings.settings import Settings, of_setting, placed
from rocstack.stack import base_reading, choice, component, overlay, resolve, rules, stack
from rocstack.stack.base_reading import BaseReading
from rocstack.stack.component import NicProfile, TemplateLibrary
from rocstack.stack.lock import Lock, for_stack
from rocstack.stack.resolve import Resolved
from rocstack.stack.stack import UNREAD, Stack
from rocstack.steps.options import ImageOptions, Note


@dataclass(frozen=True)
class ImagePlan:
    """All that rendering needs. `nodes` are those that the worker image must fit."""

    settings: Settings
    resolved: Resolved
    components: TemplateLibrary
    nics: TemplateLibrary
    lock: Lock | None = None
    providers: ProviderPlan | None = None
    nodes: tuple[NodeProfile, ...] = ()
    why: str = ""  # this stack, where it was chosen for the nodes
    lacks: tuple[str, ...] = ()  # why the nodes' GPUs can't use it: of a rehearsal image
    where: Callable[[Path_], Where | None] = lambda loc: None  # the line of a key path of the stack

    @property
    def folder(self) -> Path:
        """Where a build of this stack and NIC keeps its context, logs and reports."""
        further = [role for role in self.resolved.stack.roles if role in component.FURTHER]
        return Path(self.settings.out) / "-".join([self.resolved.stack.name, self.resolved.nic.name, *further])

    def render(self) -> BuildContext:
        archives = self.providers.archives if self.providers else {}
        return renderer.render(self.resolved, self.lock, self.components, self.nics, archives)


def plan_image(options: ImageOptions, chosen: Settings, note: Note, *, base: str | None = None) -> ImagePlan:
    """Decides everything that needs no engine.

    Raises:
        BadInput: something is wrong with stack, NIC, overlay, rules, lock, profiles or inventory.
        CheckFailed: a node can't be read, or can't fit the image.
    """
    folder, named = chosen.overlay_folder(), bool(options.profiles or options.inventory)
    with placed(Path.cwd()):
        checks.check(chosen.cluster, overlay=folder)
    role = getattr(options, "role", "")
    if role in component.FURTHER:
        return _plan_further(role, options.lock, chosen, note)
    why, lacks = "", tuple[str, ...]()

    @cache
    def nodes(nic: str) -> tuple[NodeProfile, ...]:
        own = component.validate_head(component.library("nic", folder).get(nic), NicProfile)
        return nodes_of(options.profiles, options.inventory, own.modules, own.pci, note, overlay=folder, here=False)

    if named and not chosen.rehearsal and "stack" not in chosen.model_fields_set:
        fits = fits_of(nodes(chosen.nic), folder, options.gfx)
        if fits:
            best, why = choice.choose(fits)
            chosen = chosen.model_copy(update={"stack": best.stack.name})
            note(why)

    gfx = options.gfx or (gfx_for(chosen, nodes(chosen.nic), note) if named else None)

    def providers(nic: NicProfile, own: Stack) -> ProviderPlan:
        nonlocal lacks
        found = nodes(chosen.nic)
        if named:
            fit = choice.fit(own, choice.NodesNeed.of(found), own.gfx)
            if not chosen.rehearsal:
                choice.refuse_unusable(fit, fits_of(found, folder) if fit.lacks else ())
            lacks = fit.lacks
        return _providers(nic, own, found, options, chosen, note)

    plan = join(chosen, gfx=gfx, methods=options.methods, base=base, providers=providers)
    refuse_base(plan)
    lock = lock_of(plan.resolved.stack, options.lock, chosen)
    cards = sorted({gpu.device for node in nodes(chosen.nic) for gpu in node.gpus}) if named else ()
    value = plan.resolved.model_copy(update={"cards": tuple(cards)})
    return replace(plan, resolved=value, nodes=nodes(chosen.nic), lock=lock, why=why, lacks=lacks)


def lock_of(own: Stack, file: Path | None, chosen: Settings) -> Lock | None:
    """The stack's lock, as `for_stack` and trust_policy.trusted_lock read it: only a policy needs cryptography.

    Raises:
        BadInput, Untrusted: as these do.
    """
    if not chosen.trust.keys:
        return for_stack(own, file)
    from rocstack.steps.trust_policy import trusted_lock

    return trusted_lock(own, file, chosen)


def _plan_further(role: str, lock: Path | None, chosen: Settings, note: Note) -> ImagePlan:
    """A further image suits any node: it is on our own stack where the chosen one has none."""
    home = stack.home_of(role, chosen.stack, chosen.overlay_folder())
    file = lock if home == chosen.stack else None
    if home != chosen.stack:
        note(f"stack {chosen.stack_name()} has no {role} image of its own, so it is the one of {home}")
        chosen = chosen.model_copy(update={"stack": home, "base_image": ""})
    plan = join(chosen, role=role)
    refuse_base(plan)
    return replace(plan, lock=lock_of(plan.resolved.stack, file, chosen))


def fits_of(nodes: Sequence[NodeProfile], folder: Path | None, gfx: str | None = None) -> tuple[choice.StackFit, ...]:
    """Every stack with Slurm that isn't for one program alone, beside the nodes; none where their GPUs are not known.
    With `gfx` each built for these targets.

    Raises:
        BadInput: a stack's file is wrong, or `gfx`.
    """
    need = choice.NodesNeed.of(nodes)
    names = stack.names(folder) if need.targets else ()
    stacks = [stack.load(name, folder) for name in names]
    fit = [own for own in stacks if "slurm" in own.components and not own.for_one_program]
    return tuple(choice.fit(own, need, split_gfx(gfx)) for own in fit)


def gfx_for(chosen: Settings, nodes: Sequence[NodeProfile], note: Note) -> str | None:
    """The nodes' targets, where the stack leaves them out unless it is asked for them; as --gfx has them.

    Raises:
        BadInput: the stack's file is wrong.
    """
    own = stack.load(chosen.stack, chosen.overlay_folder())
    fitted = own.for_targets(choice.NodesNeed.of(nodes).targets)
    if fitted.gfx == own.gfx:
        return None
    note(f"stack {own.name} for the nodes' {listed(fitted.gfx)}, instead of {listed(own.gfx)}")
    return ",".join(fitted.gfx)


def split_gfx(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",")) if text else ()


def plan_on_top(options: ImageOptions, chosen: Settings, note: Note, reading: BaseReading, reference: str) -> ImagePlan:
    """Decides what a NIC's layer on an image holds.

    Raises:
        BadInput: something is wrong with NIC, rules or profiles; the image can't be the base of it.
        CheckFailed: a node can't be read, or can't fit the image.
    """
    own = base_reading.on_top(reading, reference, image_names.as_variant(reference))
    folder = chosen.overlay_folder()
    components, nics = component.library("components"), component.library("nic", folder)
    nic = component.validate_head(nics.get(chosen.nic), NicProfile)
    nodes = nodes_of(options.profiles, options.inventory, nic.modules, nic.pci, note, overlay=folder, here=False)
    need = choice.NodesNeed.of(nodes)
    lacks = gpu_lacks(base_reading.image_facts(reading), need.targets)
    if not chosen.rehearsal:
        choice.refuse_unusable(choice.StackFit(own, need, lacks), ())
    providers = _providers(nic, own, nodes, options, chosen, note)
    value = resolve.resolve(
        own,
        chosen.nic,
        components,
        nics,
        overlay.load(None),
        base=reference,
        providers=providers.providers,
        plugin=providers.plugin,
        reading=reading,
        on_top=True,
    )
    value = _with_repository(value, chosen)
    plan = ImagePlan(chosen, value, components, nics, providers=providers, nodes=nodes, lacks=lacks)
    refuse_base(plan)
    return plan


def refuse_base(plan: ImagePlan) -> None:
    """Judges what was read of a base.

    Raises:
        BadInput: nothing that works can be built on it; it breaks a rule.
    """
    value = plan.resolved
    if value.reading:
        ways = [provider.way for provider in value.providers]
        base_reading.refuse(value.reading, value.base, value.nic.provider, ways)
    refuse_broken(plan)


def refuse_broken(plan: ImagePlan) -> None:
    """
    Raises:
        BadInput: it breaks a rule; with the line of the stack that says the fact.
    """

    def where(fact: str) -> Where | None:
        place = stack.place_of(fact)
        return plan.where(place) if place else None

    rules.refuse_broken(rules.judge(rules.load(), plan.resolved.facts()), where)


def join(
    chosen: Settings,
    *,
    gfx: str | None = None,
    methods: Sequence[str] = (),
    base: str | None = None,
    role: str = "",
    providers: Callable[[NicProfile, Stack], ProviderPlan] | None = None,
) -> ImagePlan:
    """Stack, NIC profile and overlay, whatever the rules say. `providers` chooses how the NIC's provider gets in; a
    further image, which `role` may name, has none.

    Raises:
        BadInput: something is wrong with them.
    """
    folder, here = chosen.overlay_folder(), Path.cwd()
    with of_setting(chosen, "overlay", here):
        layer = overlay.load(folder)
    components, nics = component.library("components", folder), component.library("nic", folder)
    component.refuse_bad_heads(folder, components, nics)
    with of_setting(chosen, "stack", here):
        doc = stack.read(chosen.stack, folder)
    own = stack.load_from(doc, chosen.stack, folder).with_methods(_methods(methods))
    known = own.every_component
    further = next((each for each in component.FURTHER if each == role), None)
    if further:
        own, providers, gfx = own.for_role(further), None, None
    if gfx:
        own = own.with_gfx(split_gfx(gfx))
    with of_setting(chosen, "nic", here):
        nic = nics.get(chosen.nic)
    plan = None
    if providers:
        plan = providers(component.validate_head(nic, component.NicProfile), own)
    value = resolve.resolve(
        own,
        chosen.nic,
        components,
        nics,
        layer,
        base=base,
        providers=plan.providers if plan else (),
        plugin=plan.plugin if plan else None,
        known=known,
        where=doc.where,
    )
    return ImagePlan(chosen, _with_repository(value, chosen), components, nics, providers=plan, where=doc.where)


def _with_repository(value: Resolved, chosen: Settings) -> Resolved:
    if chosen.nic_repository and any(provider.way == "package" for provider in value.providers):
        return value.model_copy(update={"nic_repository": chosen.nic_repository})
    return value


def _methods(texts: Sequence[str]) -> dict[str, str]:
    methods = {}
    for text in texts:
        name, equals, method = text.partition("=")
        if not (name and equals and method):
            raise BadInput.of("bad-with", text=text)
        methods[name] = method
    return methods


def _providers(
    nic: NicProfile, own: Stack, nodes: Sequence[NodeProfile], options: ImageOptions, chosen: Settings, note: Note
) -> ProviderPlan:
    """
    Raises:
        BadInput: what `ways.plan` and `plugin_source.read` refuse; a setting is missing.
        CheckFailed: what will be built can't fit a node.
    """
    source = Path(chosen.nic_source) if chosen.nic_source else None

    @cache
    def releases() -> tuple[vendor_release.VendorRelease, ...]:
        def left_out(error: RocstackError) -> None:
            note(f"left out: {error.where or ''} {error.what}")

        return vendor_release.find(source, left_out) if source else vendor_release.find_usual(skipped=left_out)

    offer = ways.Offer(
        releases,
        lambda: vendor_release.rdma_core(source),
        accept=chosen.nic_accept or None,
        repository=chosen.nic_repository is not None,
        versions={name: part.version for name, part in own.components.items() if part.version != UNREAD},
    )
    wanted, variants = ways.needs(nic, nodes), options.nic_variants
    if options.nic_releases:
        wanted, variants = ways.needs_of_releases(nic, wanted, releases(), options.nic_releases), True
    plan = ways.plan(nic, wanted, offer, way=options.way, variants=variants)
    if any(provider.way == "package" for provider in plan.providers):
        if chosen.nic_repository is None:
            raise BadInput.of("no-repository")
        if not chosen.nic_repository.key_sha256:
            raise BadInput.of("unpinned-repository", key=chosen.nic_repository.key)
    _refuse_unfit(ways.planned(nic, plan, offer.versions.get("rdma")), nodes)
    if chosen.nic_plugin:
        plugin, archives = plugin_source.read(nic, Path(chosen.nic_plugin), offer.versions)
        plan = replace(plan, plugin=plugin, archives={**plan.archives, **archives})
    return plan


def _refuse_unfit(image: ImageFacts, nodes: Sequence[NodeProfile]) -> None:
    verdicts = [judge(image, node) for node in nodes]
    unfit = [verdict for verdict in verdicts if verdict.result == UNFIT]
    if unfit:
        others = "; ".join(verdict.sentence for verdict in unfit[1:4])
        more = _more(len(unfit) - 1)
        raise CheckFailed.of("would-not-fit", sentence=unfit[0].sentence, more=more, others=others)


def nodes_of(
    profiles: Path | None,
    inventory: Path | None,
    modules: Sequence[str],
    pci: Sequence[str],
    note: Note,
    *,
    overlay: Path | None = None,
    here: bool = True,
) -> tuple[NodeProfile, ...]:
    """The nodes that a worker image for a NIC with these kernel modules and cards must fit: those of a file or an
    inventory, or this machine. Without `here` this machine counts only if it has such cards.

    Raises:
        BadInput: both are given; wrong profiles or inventory; none of the nodes is a worker.
        CheckFailed: a node of the inventory could not be read.
    """
    if profiles and inventory:
        raise BadInput.of("profiles-and-inventory")
    if not (profiles or inventory):
        if not here and not any(Path(f"/sys/module/{name}").is_dir() for name in modules):
            return ()
        from rocstack.probe.recordings import probe_host

        own = probe_host(overlay=overlay)
        return (own,) if here or is_worker(replace(own, gpus=()), modules, pci) else ()
    from rocstack.probe.profiles import read_profiles

    probed = read_profiles(profiles) if profiles else _probe(Path(str(inventory)), overlay, note)
    workers = tuple(node for node in probed if is_worker(node, modules, pci))
    others = [node.name for node in probed if node not in workers]
    if not workers:
        raise BadInput.of("no-worker-among", names=_some(others))
    if others:
        note(f"not judged, for lack of GPUs and such a NIC: {_some(others)}")
    return workers


def _probe(inventory: Path, overlay: Path | None, note: Note) -> tuple[NodeProfile, ...]:
    from rocstack.deploy.read import inventory_text
    from rocstack.probe import recordings

    inventory_text.refuse_lost(inventory)
    note(f"probing the nodes of {inventory}")
    probed = recordings.record_inventory(inventory)
    if probed.failures:
        first = probed.failures[0]
        more = _more(len(probed.failures) - 1)
        raise CheckFailed.of("nodes-unread", node=first.node, state=first.state, reason=first.reason, more=more)
    return recordings.profiles(probed.recordings, overlay)


def _more(count: int) -> str:
    return f" (and {count} more)" if count > 0 else ""


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + _more(len(names) - 6)
