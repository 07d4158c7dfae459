// Search in the sections of all pages. INDEX, above: [heading, page, address, text, whether it is of the reference].
"use strict";
(() => {
  const MOST = 12, AROUND = 60;
  const box = document.querySelector(".search"), input = box.querySelector("input");
  const list = box.querySelector("ul"), status = box.querySelector("[role=status]");
  // British and American spellings are one, letter by letter: optimizer finds optimiser, normalise finds normalize.
  const fold = (text) => text.toLowerCase().replace(/iz(?=e|i|a)/g, "is").replace(/yze/g, "yse");
  const lower = INDEX.map(([heading, page, , text, reference]) => ({
    title: fold(heading), path: fold(reference ? `${page}.${heading}` : `${page} ${heading}`),
    text: fold(text), last: fold(heading).split(".").pop(),
  }));

  // How well a section fits one word: by its name, the beginning of its name, its path, its text; 0: not at all.
  function fit(section, word) {
    if (section.title === word || section.path === word) return 100;
    if (section.last === word) return 80;
    if (section.last.startsWith(word)) return 60;
    if (section.title.includes(word)) return 40;
    if (section.path.includes(word)) return 30;
    const at = section.text.indexOf(word);
    return at < 0 ? 0 : at < 150 ? 10 : 5;
  }

  function search(query) {
    const words = fold(query).replace(/[()`]/g, " ").split(/\s+/).filter(Boolean).map((word) => word.replace(/^ch\./, "clearhead."));
    if (!words.length) return [];
    return lower
      .map((section, i) => {
        const fits = words.map((word) => fit(section, word));
        const phrase = words.join(" ");
        const whole = section.title === phrase ? 100 : words.length > 1 && section.text.includes(phrase) ? 50 : 0;
        return [fits.includes(0) ? 0 : whole + fits.reduce((a, b) => a + b) - section.title.length / 100, i];
      })
      .filter(([score]) => score > 0)
      .sort((a, b) => b[0] - a[0] || a[1] - b[1])
      .slice(0, MOST)
      .map(([, i]) => [INDEX[i], words]);
  }

  function element(name, text, kind) {
    const made = document.createElement(name);
    made.textContent = text;
    if (kind) made.className = kind;
    return made;
  }

  // The beginning of a section that is found by its name, or else the text around the first of the words; all are marked.
  function excerpt(heading, text, words) {
    const first = words.map((word) => fold(text).indexOf(word)).filter((at) => at >= 0);
    let from = Math.max(0, Math.min(...first, text.length) - AROUND);
    if (from < AROUND / 2 || words.every((word) => fold(heading).includes(word))) from = 0;
    if (from) from = text.indexOf(" ", from) + 1;
    const part = (from ? "… " : "") + text.slice(from, from + 3 * AROUND);
    const line = element("span", "", "excerpt");
    const escaped = words.map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&").replace(/is(?=e|i|a)/g, "i[sz]"));
    for (const [i, piece] of part.split(new RegExp(`(${escaped.join("|")})`, "i")).entries()) {
      line.append(i % 2 ? element("mark", piece) : piece);
    }
    return line;
  }

  function show() {
    const results = search(input.value);
    list.replaceChildren(
      ...results.map(([[heading, page, address, text], words]) => {
        const link = element("a", "");
        link.href = address;
        const where = element("span", page === heading ? "" : page, "where");
        link.append(element("strong", heading), " ", where, excerpt(heading, text, words));
        const item = document.createElement("li");
        item.append(link);
        return item;
      }),
    );
    list.hidden = !results.length;
    const asked = input.value.trim();
    const count = results.length === MOST ? `the ${MOST} best results` : results.length === 1 ? "1 result" : `${results.length} results`;
    status.textContent = !asked ? "" : results.length ? count : "nothing found";
    status.classList.toggle("seen", Boolean(asked) && !results.length);
  }

  function move(step) {
    const stops = [input, ...list.querySelectorAll("a")];
    const at = stops.indexOf(document.activeElement);
    stops[(at + step + stops.length) % stops.length].focus();
  }

  input.addEventListener("input", show);
  input.addEventListener("focus", show);
  box.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) move(step);
    else if (event.key === "Enter" && event.target === input) list.querySelector("a")?.click();
    else if (event.key === "Escape") { input.value = ""; show(); input.focus(); }
    else return;
    event.preventDefault();
  });
  list.addEventListener("click", (event) => {
    if (event.target.closest("a")) list.hidden = true; // the link may lead to this very page
  });
  for (const event of ["click", "focusin"]) {
    document.addEventListener(event, ({ target }) => {
      if (!box.contains(target)) list.hidden = true;
    });
  }
  document.addEventListener("keydown", (event) => {
    const typing = event.target.matches("input, textarea") || event.ctrlKey || event.metaKey || event.altKey;
    if (event.key !== "/" || typing) return;
    event.preventDefault();
    input.focus();
  });
  box.hidden = false;
})();
