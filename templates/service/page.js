// Asks before what can't be undone, and sends a form once: a double click is one job. Questions may come one after the
// other: those that htmx sends, and those that only look.
document.addEventListener("submit", (event) => {
  const form = event.target, asked = form.dataset.ask
  const once = form.method === "post" && !form.hasAttribute("hx-post")
  const again = once && form.dataset.sent && Date.now() - form.dataset.sent < 3000
  if (again || (asked && !confirm(asked))) { event.preventDefault(); event.stopPropagation() }
  else form.dataset.sent = Date.now()
}, true)

const SILENT = "The service doesn't answer. Send it once more when it does."

// A form that may be refused doesn't leave its page for that: nothing has to be sent again to come back to it.
document.addEventListener("submit", async (event) => {
  const form = event.target, button = form.querySelector("button")
  if (!form.hasAttribute("data-stay") || event.defaultPrevented) return
  event.preventDefault()
  const label = button.textContent, given = new FormData(form)
  button.disabled = true
  button.textContent = form.dataset.stay
  try {
    const body = form.enctype === "multipart/form-data" ? given : new URLSearchParams(given)
    const headers = { Accept: "text/html" } // a page says why, also where no form was read
    const answer = await fetch(form.action, { method: "post", body, headers, redirect: "follow" })
    if (answer.redirected) { location.assign(answer.url); return }
    if (answer.status === 401) { again("You are signed out. Sign in in another tab, then send it once more."); return }
    const page = new DOMParser().parseFromString(await answer.text(), "text/html"), main = page.querySelector("main")
    const alert = page.querySelector("main [role=alert]")
    if (!page.querySelector("main form[data-stay]")) { again(alert ? alert.textContent : SILENT); return }
    document.querySelector("main").replaceWith(main)
    if (window.htmx) htmx.process(main)
    if (alert) { alert.tabIndex = -1; alert.focus() }
  } catch { again(SILENT) }

  function again(why) {
    old(why)
    button.disabled = false
    button.textContent = label
    delete form.dataset.sent
  }
})

// What renews itself waits while somebody presses a button of it or marks its text.
document.addEventListener("htmx:beforeSwap", (event) => {
  const place = event.detail.target, marked = getSelection()
  const holds = place.querySelector("button:active, a:active") || (!marked.isCollapsed && marked.containsNode(place, true))
  if (holds && (place.getAttribute("hx-trigger") || "").startsWith("every")) event.detail.shouldSwap = false
})

// A token is one line, in a box for text: Enter sends it.
document.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !event.target.hasAttribute("data-line")) return
  event.preventDefault()
  event.target.form.requestSubmit()
})

// What stands on a page is old when a part of it can't be renewed.
function old(text) {
  const place = document.getElementById("old")
  place.textContent = text
  place.hidden = !text
}
document.addEventListener("htmx:afterRequest", (event) => {
  const { successful, xhr } = event.detail
  const why = xhr.responseText || "The service doesn't answer"
  old(successful ? "" : `${why.replace(/[.]?$/, ".")} What stands here is what was last seen.`)
})
