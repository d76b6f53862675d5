"use strict";
// Sorting, filters and search; the address keeps their state. The page is complete without this script.
(() => {
  const all = (what, where = document) => [...where.querySelectorAll(what)];
  const make = (tag, has = {}, ...inside) => { const it = Object.assign(document.createElement(tag), has); it.append(...inside); return it; };
  const bar = document.getElementById("tools"), said = document.getElementById("said"), heard = document.getElementById("heard");
  const tables = all("table.cells").map((table) => ({
    table, body: table.tBodies[0], heads: all("thead th", table), name: table.dataset.workload, sorted: "",
    order: [], rows: all("tbody tr", table).map((tr, rank) => ({ tr, rank, verdict: tr.className, text: tr.textContent.toLowerCase() })),
  }));
  if (!tables.length) return;
  tables.forEach((one) => { one.order = one.rows; });
  const rows = tables.flatMap((one) => one.rows);
  const quiet = new Set(["same", "unsupported", "missing"]);
  const verdicts = [...new Set(rows.map((row) => row.verdict))].sort((a, b) => quiet.has(a) - quiet.has(b));
  const loud = verdicts.filter((name) => !quiet.has(name));
  const usual = loud.length ? loud : verdicts;
  const labels = (one) => one.heads.map((head) => head.textContent.trim());

  // ---- the choice: from the controls and from the address
  const search = make("input", { type: "search", id: "q", placeholder: "part of any column" });
  const boxes = new Map(verdicts.map((name) => [name, make("input", { type: "checkbox", value: name })]));
  const selects = new Map();
  const addSelect = (name, label, values) => {
    const select = make("select", {}, make("option", { value: "", textContent: "any" }), ...values.map((value) => make("option", { value, textContent: value })));
    selects.set(name, select);
    bar.append(make("label", {}, label + " ", select));
  };
  const group = make("fieldset", {}, make("legend", { textContent: "Verdict" }));
  for (const [name, box] of boxes) {
    const count = rows.filter((row) => row.verdict === name).length;
    group.append(make("label", {}, box, ` ${name} (${count})`));
  }
  bar.append(make("label", {}, "Search ", search), group);
  const workloads = [...new Set(tables.map((one) => one.name))];
  if (workloads.length > 1) addSelect("w", "Workload", workloads);
  const axes = new Map();
  for (const one of tables) {
    one.heads.forEach((head, at) => {
      if (!("axis" in head.dataset)) return;
      const values = axes.get(head.dataset.axis) ?? new Set();
      one.rows.forEach((row) => values.add(row.tr.cells[at].textContent));
      axes.set(head.dataset.axis, values);
    });
  }
  const natural = new Intl.Collator("en", { numeric: true }).compare;
  for (const [axis, values] of axes) if (values.size < 60) addSelect("a." + axis, axis, [...values].sort(natural));
  const button = (text, does) => { const it = make("button", { type: "button", textContent: text }); it.addEventListener("click", does); bar.append(it); return it; };
  button("Show all", () => { apply({}); boxes.forEach((box) => { box.checked = true; }); refresh(); });
  const more = button("", () => { limit = Infinity; filter(); limit = AT_ONCE; });
  bar.append(said);
  bar.hidden = false;

  // ---- rows that are shown
  const wanted = (one, row, chosen, text) => boxes.get(row.verdict).checked && (!text || row.text.includes(text)) &&
    (!selects.get("w")?.value || selects.get("w").value === one.name) &&
    chosen.every(([axis, value]) => { const at = one.heads.findIndex((head) => head.dataset.axis === axis); return at >= 0 && row.tr.cells[at].textContent === value; });
  const AT_ONCE = 1000; // rows: laying out ten thousand takes a browser seconds
  let limit = AT_ONCE;
  const filter = () => {
    const text = search.value.trim().toLowerCase();
    const chosen = [...selects].filter(([name, select]) => name.startsWith("a.") && select.value).map(([name, select]) => [name.slice(2), select.value]);
    let shown = 0, wantedRows = 0;
    for (const one of tables) {
      let here = 0;
      for (const row of one.order) {
        const fits = wanted(one, row, chosen, text);
        wantedRows += fits;
        row.tr.hidden = !fits || shown + here >= limit;
        here += !row.tr.hidden;
      }
      one.table.closest(".wide").hidden = !here;
      shown += here;
    }
    more.hidden = shown === wantedRows;
    more.textContent = `Show ${wantedRows - shown} more that fit`;
    said.textContent = `${shown} of ${rows.length} rows shown, ${rows.length - shown} hidden`;
  };

  // ---- order
  const value = (row, at) => {
    if (at === 0) return row.rank;
    const text = row.tr.cells[at].textContent.trim(), [, number, word] = /^(\d[\d.]*)(?: (ns|µs|ms|s|% (?:slower|faster|change)))?(?:$|[ ,])/.exec(text) ?? [];
    return text === "" ? null : text === "~" ? 0 : number === undefined ? text : number * (SCALE[word] ?? 1);
  };
  const order = (one, at, down) => {
    const first = one.rows.map((row) => ({ row, key: value(row, at) }));
    first.sort((a, b) => {
      if (a.key === null || b.key === null) return (a.key === null) - (b.key === null); // rows without a value come last
      const by = typeof a.key === typeof b.key ? (typeof a.key === "number" ? a.key - b.key : natural(a.key, b.key)) : typeof a.key === "number" ? -1 : 1;
      return down ? -by : by;
    });
    place(one, first.map((item) => item.row));
    one.sorted = at + (down ? "d" : "u");
    one.heads.forEach((head, i) => (i === at ? head.setAttribute("aria-sort", down ? "descending" : "ascending") : head.removeAttribute("aria-sort")));
  };
  const SCALE = { ns: 1, "µs": 1e3, ms: 1e6, s: 1e9, "% faster": -1 }; // times in ns, changes in per cent of time
  const place = (one, ordered) => { one.order = ordered; one.body.replaceChildren(...ordered.map((row) => row.tr)); };
  const unsort = (one) => { one.sorted = ""; place(one, one.rows); one.heads.forEach((head) => head.removeAttribute("aria-sort")); };
  tables.forEach((one) => one.heads.forEach((head, at) => {
    const sorter = make("button", { type: "button" });
    sorter.append(...head.childNodes);
    head.append(sorter);
    sorter.addEventListener("click", () => {
      if (one.sorted === at + "u") order(one, at, true); else if (one.sorted === at + "d") unsort(one); else order(one, at, false);
      const way = head.getAttribute("aria-sort");
      filter();
      heard.textContent = way ? `${one.name} sorted by ${labels(one)[at]}, ${way}` : `${one.name} in its first order`;
      remember();
    });
  }));

  // ---- the address
  const remember = () => {
    const state = new URLSearchParams();
    if (search.value) state.set("q", search.value);
    const on = verdicts.filter((name) => boxes.get(name).checked);
    if (on.join() !== usual.join()) state.set("v", on.join());
    for (const [name, select] of selects) if (select.value) state.set(name, select.value);
    tables.forEach((one, i) => { if (one.sorted) state.set("s" + i, one.sorted); });
    const open = all("details.cell[open] > div").map((it) => it.id);
    if (open.length) state.set("open", open.join());
    history.replaceState(null, "", state.size ? "#" + state : location.pathname + location.search);
  };
  const apply = (state) => {
    search.value = state.q ?? "";
    const on = "v" in state ? state.v.split(",") : usual;
    boxes.forEach((box, name) => { box.checked = on.includes(name); });
    selects.forEach((select, name) => { select.value = state[name] ?? ""; if (select.selectedIndex < 0) select.value = ""; });
    tables.forEach((one, i) => {
      const [, at, way] = /^(\d+)([ud])$/.exec(state["s" + i] ?? "") ?? [];
      if (at !== undefined && Number(at) < one.heads.length) order(one, Number(at), way === "d"); else if (one.sorted) unsort(one);
    });
  };
  const read = () => {
    const text = location.hash.slice(1), one = /^c\d+$/.test(text);
    apply(one ? {} : Object.fromEntries(new URLSearchParams(text)));
    filter();
    const open = one ? [text] : (new URLSearchParams(text).get("open") ?? "").split(",").filter((id) => /^c\d+$/.test(id));
    open.forEach((id) => { const it = document.getElementById(id)?.closest("details"); if (it) it.open = true; });
    if (open.length) document.getElementById(open[0])?.closest("details")?.scrollIntoView();
  };
  const refresh = () => { filter(); remember(); };
  let waiting;
  search.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(refresh, 120); });
  bar.addEventListener("change", (event) => { if (event.target !== search) refresh(); });
  all("details.cell").forEach((it) => it.addEventListener("toggle", remember));
  window.addEventListener("hashchange", read);

  read();
})();
