// Asks before what can't be undone, and sends a form once: a double click is one job.
document.addEventListener("submit", (event) => {
  const form = event.target, asked = form.dataset.ask
  const again = form.dataset.sent && Date.now() - form.dataset.sent < 3000
  if (again || (asked && !confirm(asked))) { event.preventDefault(); event.stopPropagation() }
  else form.dataset.sent = Date.now()
}, true)
