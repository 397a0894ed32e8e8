// What a person who does not see the page, or does not use a mouse, would miss.
() => {
  const found = [];
  const named = (e) => (e.labels?.[0]?.innerText || e.getAttribute("aria-label") || e.textContent || e.title || "").trim();
  for (const e of document.querySelectorAll("button, a[href], input, select, textarea"))
    if (!named(e)) found.push(`no name: ${e.outerHTML.slice(0, 80)}`);
  for (const e of document.querySelectorAll("table")) if (!e.caption?.textContent) found.push("a table without a caption");
  for (const e of document.querySelectorAll("img")) if (!e.hasAttribute("alt")) found.push("an image without alt");
  for (const e of document.querySelectorAll("svg")) {
    const told = e.closest("[role=img][aria-label]") || e.closest("[aria-hidden=true]");
    if (!told) found.push("a drawing without words");
  }
  for (const tag of ["header", "nav", "main", "footer"]) if (document.querySelectorAll(tag).length !== 1) found.push(`not one ${tag}`);
  if (document.querySelectorAll("h1").length !== 1) found.push("not one h1");
  let before = 0;
  for (const e of document.querySelectorAll("h1, h2, h3, h4")) {
    const level = Number(e.tagName[1]);
    if (level > before + 1) found.push(`h${before} is followed by h${level}: ${e.textContent}`);
    before = level;
  }
  const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
  if (new Set(ids).size !== ids.length) found.push(`ids twice: ${ids.filter((id, i) => ids.indexOf(id) !== i)}`);
  return found;
}
