// Tables that are brought up to date in place: rows and cells that stay the same are left alone,
// so that focus, selection and scrolling stay, too. Data becomes text, never markup.

export const element = (tag, attributes = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
};

// Sets the text only if it is another one.
export const write = (place, text) => {
  if (place.textContent !== text) place.textContent = text;
};

const compare = (one, other) => {
  // What is not known comes last, whichever way.
  const [lacks, otherLacks] = [one, other].map((it) => it === null || it === undefined);
  if (lacks || otherLacks) return { order: lacks - otherLacks, fixed: true };
  if (typeof one === "number" && typeof other === "number") return { order: one - other };
  return { order: String(one).localeCompare(String(other), "en", { numeric: true }) };
};

// `columns`: { title, value(row) to sort by, and text(row) or draw(cell, row); is: the cells' class }.
// `key(row)` tells rows apart. `details(row, place)` fills what opens below a row, and its first
// cell is then a button that opens it. `sorted`: [title, descending]. `empty`: what stands there
// without rows. `most` rows are shown until all are asked for; `filter`: its label.
export class Table {
  constructor(place, { name, columns, key, details, sorted, empty, most = 100, filter }) {
    Object.assign(this, { columns, key, details, empty, most, opened: new Set() });
    [this.sortedBy, this.descending] = sorted;
    this.rows = [];
    this.lines = new Map();
    this.needle = "";
    if (filter) place.querySelector(".title").append(this.filterField(filter));
    this.head = element("tr");
    this.heads = columns.map((column) => this.headOf(column));
    this.body = element("tbody");
    const table = element("table", { "aria-label": name }, element("thead", {}, this.head), this.body);
    // It scrolls by itself where it is too wide, by keys as well.
    place.append(element("div", { class: "wide", role: "region", tabindex: "0", "aria-label": name }, table));
    this.all = element("button", { type: "button", class: "all", hidden: "" });
    this.all.addEventListener("click", () => { this.most = Infinity; this.refresh(); });
    place.append(this.all);
  }

  filterField(label) {
    const input = element("input", { type: "search", autocomplete: "off", spellcheck: "false" });
    input.addEventListener("input", () => {
      this.needle = input.value.trim().toLowerCase();
      this.refresh();
    });
    return element("label", { class: "filter" }, `${label} `, input);
  }

  headOf(column) {
    const head = element("th", { scope: "col", class: column.is || "" });
    this.head.append(head);
    // Bars have no title: they are sorted by the number beside them.
    if (column.title) this.makeSortable(head, column);
    return head;
  }

  makeSortable(head, column) {
    const button = element("button", { type: "button" }, column.title);
    button.addEventListener("click", () => {
      this.descending = this.sortedBy === column.title ? !this.descending : Boolean(column.falls);
      this.sortedBy = column.title;
      this.refresh();
    });
    head.append(button);
    if (column.hint) head.title = column.hint;
  }

  show(rows) {
    this.rows = rows;
    this.refresh();
  }

  // Columns that say nothing are left out.
  hide(title, hidden) {
    const index = this.columns.findIndex((column) => column.title === title);
    this.columns[index].hidden = this.heads[index].hidden = hidden;
  }

  open(key) {
    this.opened.add(key);
    this.refresh();
    const line = this.lines.get(key);
    if (line) line.row.scrollIntoView({ block: "nearest" });
  }

  refresh() {
    const column = this.columns.find((it) => it.title === this.sortedBy) || this.columns[0];
    this.columns.forEach((it, index) => {
      if (!it.title) return;
      const order = it === column ? (this.descending ? "descending" : "ascending") : "none";
      if (this.heads[index].ariaSort !== order) this.heads[index].ariaSort = order;
    });
    const matches = (row) => this.columns.some((it) =>
      it.text && !it.hidden && it.text(row).toLowerCase().includes(this.needle));
    const found = this.needle ? this.rows.filter(matches) : [...this.rows];
    found.sort((one, other) => {
      const { order, fixed } = compare(column.value(one), column.value(other));
      return this.descending && !fixed ? -order : order;
    });
    const shown = found.slice(0, this.most);
    this.all.hidden = shown.length === found.length;
    write(this.all, `Show all ${found.length}`);
    this.arrange(shown.length ? shown.flatMap((row) => this.linesOf(row)) : [this.emptyLine()]);
    const keys = new Set(this.rows.map(this.key));
    for (const key of this.lines.keys()) if (!keys.has(key)) this.lines.delete(key);
  }

  emptyLine() {
    this.lone ||= element("tr", { class: "empty" }, element("td", { colspan: this.columns.length }));
    write(this.lone.firstChild, this.needle ? "nothing matches" : this.empty);
    return this.lone;
  }

  linesOf(row) {
    const key = this.key(row);
    if (!this.lines.has(key)) this.lines.set(key, this.newLine(key));
    const line = this.lines.get(key);
    this.columns.forEach((column, index) => {
      const cell = line.row.cells[index];
      cell.hidden = Boolean(column.hidden);
      if (column.draw) column.draw(line.button && index === 0 ? line.button : cell, row);
      else write(line.button && index === 0 ? line.button : cell, column.text(row));
    });
    if (!this.details) return [line.row];
    const isOpen = this.opened.has(key);
    if (line.button.ariaExpanded !== String(isOpen)) line.button.ariaExpanded = String(isOpen);
    if (!isOpen) return [line.row];
    line.below ||= element("tr", { class: "details" }, element("td", { colspan: this.columns.length }));
    return [line.row, line.below];
  }

  newLine(key) {
    const line = { row: element("tr") };
    for (const { is } of this.columns) line.row.append(element("td", { class: is || "" }));
    if (this.details) {
      line.button = element("button", { type: "button" });
      line.row.cells[0].append(line.button);
      line.button.addEventListener("click", () => {
        if (!this.opened.delete(key)) this.opened.add(key);
        this.refresh();
      });
    }
    return line;
  }

  // Moves as few lines as possible: a focused one that is moved loses its focus.
  arrange(wanted) {
    const focused = document.activeElement;
    let at = this.body.firstChild;
    for (const line of wanted) {
      if (line === at) at = at.nextSibling;
      else this.body.insertBefore(line, at);
    }
    while (at) {
      const gone = at;
      at = at.nextSibling;
      gone.remove();
    }
    if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
    if (!this.details) return;
    // A place must be on the page before a chart fits into it.
    for (const row of this.rows) {
      const line = this.lines.get(this.key(row));
      if (line?.below?.isConnected) this.details(row, line.below.firstChild);
    }
  }
}
