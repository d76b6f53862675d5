"use strict";
// Both sides beside each other: a line of source lights up its instructions. Without this script the page is a diff.
(async () => {
  const by = (id) => document.getElementById(id);
  const bytes = Uint8Array.from(atob(by("data").textContent.trim()), (letter) => letter.charCodeAt(0));
  const text = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  const { places, stages, sources, at, named, spent, classes } = JSON.parse(text);
  if (!stages.length) return;
  const source = by("source"), code = by("code"), said = by("said"), tabs = by("tabs");
  const rows = []; // of the source: [row, file]
  for (const [file, lines] of sources) { if (sources.length > 1) rows.push([null, file]); for (const row of lines) rows.push([row, file]); }
  const keys = rows.map(([row, file]) => row && [file + ":" + row[3], file + ":" + row[4]]);
  const cells = (row, left, right) => `<span class="g${left.lit ?? ""}">${left.n}</span><span>${row[1]}</span><span class="g${right.lit ?? ""}">${right.n}</span><span>${row[2] || (row[0] ? "" : row[1])}</span>`;
  const number = (n) => ({ n: n < 0 ? "" : n });
  source.innerHTML = rows.map(([row, file], i) => row
    ? `<div class="r k${row[0]}" role=option aria-selected=false id=s${i}>${cells(row, number(row[3]), number(row[4]))}<span></span><span></span></div>`
    : `<div class="r wide" role=presentation></div>`).join("");
  rows.forEach(([row, file], i) => { if (!row) source.children[i].textContent = file; });
  // Rewritten lines stand beside each other by place only, unless one line became one.
  const alike = (i) => rows[i][0][0] !== 1 || ![i - 1, i + 1].some((near) => rows[near]?.[0]?.[0]);
  const moved = (i) => { // the two classes of instructions whose numbers differ most
    const [one, two] = keys[i].map((key, side) => classes[side][key] ?? {});
    const found = [...new Set([...Object.keys(one), ...Object.keys(two)])].filter((name) => name !== "other" && name !== "loops" && one[name] !== two[name]);
    const by = (name) => Math.abs((two[name] ?? 0) - (one[name] ?? 0));
    return found.sort((a, b) => by(b) - by(a)).slice(0, 2).map((name) => `${name}: ${one[name] ?? 0} → ${two[name] ?? 0}`).join(", ");
  };
  const counted = (i) => keys[i] ? named[keys[i][1]] || (alike(i) ? moved(i) : "") : "";
  rows.forEach(([row], i) => {
    // Of several rows of the report, the one that spends most at this line.
    const each = (row ? spent : []).map(([cell, both]) => [cell, both.map((of, side) => of[keys[i][side]] ?? [0, ""])]);
    const most = (both) => Math.max(both[0][0], both[1][0]), [cell, both] = each.sort((a, b) => most(b[1]) - most(a[1]))[0] ?? [];
    const samples = both && most(both) ? [`${both[0][0]} % → ${both[1][0]} %`, both[1][1], cell && `(${cell})`].filter(Boolean).join(" ") : "";
    if (row) source.children[i].lastElementChild.textContent = [counted(i), samples].filter(Boolean).join("; ");
  });
  const count = (i) => { const [left, right] = own[i].map((of) => of.length); return !alike(i) ? `→ ${right}` : left === right ? `${left}` : `${left} → ${right}`; };

  let stage = 0, chosen = -1, lit = [], cursor = -1, own = [];
  const open = (n) => {
    stage = n;
    [...tabs.children].forEach((tab, i) => { tab.setAttribute("aria-selected", i === n); tab.tabIndex = i === n ? 0 : -1; });
    const lines = stages[n][1], index = [new Map(), new Map()];
    const label = (side, place) => { const key = place < 0 ? "" : places[side][place][0]; return { n: parseInt(key.slice(key.lastIndexOf(":") + 1)) || "" }; };
    lines.forEach((row, r) => [0, 1].forEach((side) => {
      for (const key of row[3 + side] < 0 ? [] : places[side][row[3 + side]]) { const known = index[side].get(key); if (known) known.push(r); else index[side].set(key, [r]); }
    }));
    code.innerHTML = lines.map((row, r) => `<div class="r k${row[0]}" role=option aria-selected=false id=i${r}>${cells(row, label(0, row[3]), label(1, row[4]))}</div>`).join("");
    own = keys.map((both) => (both ? both.map((key, side) => index[side].get(key) ?? []) : [[], []]));
    own.forEach(([left, right], i) => {
      const has = left.length + right.length, cell = source.children[i].children[4];
      source.children[i].classList.toggle("has", has > 0);
      if (cell) { cell.textContent = has ? count(i) : ""; cell.classList.toggle("moved", alike(i) && left.length !== right.length); }
    });
    cursor = -1;
    code.scrollTop = 0;
    code.removeAttribute("aria-activedescendant");
    if (chosen >= 0) choose(chosen, false);
  };
  // Rows that were never in sight have estimated heights, which the next frames replace: they may move the row away.
  const goal = new Map(), FRAMES = 4;
  const into = (pane, it, first = false, frames = FRAMES) => {
    if (frames === FRAMES) goal.set(pane, it); else if (goal.get(pane) !== it) return;
    const top = it.offsetTop - pane.offsetTop;
    if (first || top < pane.scrollTop + 20 || top > pane.scrollTop + pane.clientHeight - 40) pane.scrollTop = top - (first ? 40 : pane.clientHeight / 3);
    if (frames) requestAnimationFrame(() => into(pane, it, false, frames - 1));
  };
  const mark = (pane, it) => {
    pane.querySelector("[aria-selected=true]")?.setAttribute("aria-selected", "false");
    it.setAttribute("aria-selected", "true");
    pane.setAttribute("aria-activedescendant", it.id);
    into(pane, it);
  };
  const choose = (i, scroll = true) => {
    chosen = i;
    if (scroll) mark(source, source.children[i]);
    code.querySelectorAll(".lit").forEach((it) => it.classList.remove("lit"));
    code.querySelectorAll(".l").forEach((it) => it.classList.remove("l"));
    own[i].forEach((of, side) => of.forEach((r) => { const it = code.children[r]; it.classList.add("lit"); it.children[2 * side].classList.add("l"); }));
    lit = [...new Set(own[i].flat())].sort((a, b) => a - b);
    const changed = (r) => stages[stage][1][r][0], right = own[i][1];
    const first = right.find(changed) ?? right[0] ?? lit.find(changed) ?? lit[0];
    if (first !== undefined) { cursor = first; into(code, code.children[first], true); }
    const [row] = rows[i];
    said.textContent = `line ${row[4] < 0 ? row[3] : row[4]}: ${counted(i) && counted(i) + "; "}${alike(i) ? own[i][0].length + " → " : ""}${own[i][1].length} lines of ${stages[stage][0]}`;
  };
  const move = (r) => { if (code.children[r]) { cursor = r; mark(code, code.children[r]); } };
  const back = (r) => { // from an instruction to its line
    const row = stages[stage][1][r], side = row[4] >= 0 ? 1 : 0, place = row[3 + side];
    const i = place < 0 ? -1 : keys.findIndex((both) => both && both[side] === places[side][place][0]);
    if (i >= 0) choose(i);
    move(r);
  };
  const step = (from, way, ok, end) => { for (let i = from + way; i >= 0 && i < end; i += way) if (ok(i)) return i; return from; };
  source.addEventListener("click", (event) => { const it = event.target.closest(".has"); if (it) choose(Number(it.id.slice(1))); });
  code.addEventListener("click", (event) => { const it = event.target.closest(".r"); if (it) back(Number(it.id.slice(1))); });
  const ways = { ArrowDown: 1, ArrowUp: -1 };
  source.addEventListener("keydown", (event) => {
    const has = (i) => source.children[i].classList.contains("has"), way = ways[event.key];
    if (way) { const to = step(chosen, way, has, rows.length); if (to !== chosen) choose(to); }
    else if (event.key === "Home") choose(step(-1, 1, has, rows.length));
    else if (event.key === "End") choose(step(rows.length, -1, has, rows.length));
    else if (event.key === "Enter" && lit.length) { move(lit.find((r) => r > cursor) ?? lit[0]); }
    else return;
    event.preventDefault();
  });
  code.addEventListener("keydown", (event) => {
    const way = ways[event.key];
    if (way) move(cursor + way); else if (event.key === "Enter" && cursor >= 0) back(cursor); else return;
    event.preventDefault();
  });
  by("next").addEventListener("click", () => {
    const lines = stages[stage][1], after = (from) => lines.findIndex((row, r) => r > from && row[0] && !lines[r - 1]?.[0]);
    const to = after(cursor), r = to < 0 ? after(-1) : to;
    if (r < 0) said.textContent = `no difference in ${stages[stage][0]}`; else move(r);
  });
  stages.forEach(([name, lines], n) => {
    const tab = Object.assign(document.createElement("button"), { type: "button", id: "t" + n, textContent: name });
    const moved = lines.filter((row) => row[0]).length;
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-label", `${name}, ${moved} of ${lines.length} lines differ`);
    tab.addEventListener("click", () => open(n));
    tabs.append(tab);
  });
  tabs.addEventListener("keydown", (event) => {
    const way = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (way) { open((stage + way + stages.length) % stages.length); tabs.children[stage].focus(); }
  });
  by("view").hidden = false;
  document.querySelectorAll("#plain details").forEach((it) => { it.open = false; });
  document.querySelectorAll("#plain [id]").forEach((it) => it.removeAttribute("id")); // the address means the pane's line
  open(stages.length - 1); // machine code
  const asked = decodeURIComponent(location.hash.slice(1)), find = (line) => keys.findIndex((both) => both && both[1] === line);
  const first = asked && find(asked) >= 0 ? find(asked) : find(at);
  const shown = first >= 0 ? first : rows.findIndex(([row], i) => row && row[0] && own[i].flat().length);
  if (shown >= 0) choose(shown);
  if (asked) { scrollTo(0, 0); source.focus({ preventScroll: true }); } // else Tab goes on from the diff, where the address's line was
  document.documentElement.dataset.ready = "1";
})();
