// Asks before what can't be undone, and sends a form once: a double click is one job. Questions may come one after the
// other: those that htmx sends, and those that only look.
document.addEventListener("submit", (event) => {
  const form = event.target, asked = form.dataset.ask
  const once = form.method === "post" && !form.hasAttribute("hx-post")
  const again = once && form.dataset.sent && Date.now() - form.dataset.sent < 3000
  if (again || (asked && !confirm(asked))) { event.preventDefault(); event.stopPropagation() }
  else form.dataset.sent = Date.now()
}, true)
