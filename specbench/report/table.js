// Sorts and filters the page's tables, and marks what scrolls. Without it nothing is hidden.
(() => {
  const SIZES = { KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30 };
  const FEW = 8; // rows that one sees at a glance need no filter

  // The first number of a text in its unit, or null where there is none, as for "-".
  const number = (text) => {
    const found = text.replace(/,/g, "").match(/-?\d+(\.\d+)?/);
    const size = text.match(/\b[KMG]iB\b/);
    return found && parseFloat(found[0]) * (size ? SIZES[size[0]] : 1);
  };

  const compare = (isWords, one, other) =>
    isWords ? one.localeCompare(other, "en", { numeric: true }) : number(one) - number(other);

  const sortable = (table) => {
    const heads = [...table.tHead.rows[0].cells];
    const body = table.tBodies[0];
    const asWritten = [...body.rows];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      const isWords = head.classList.contains("words");
      button.addEventListener("click", () => {
        // Words from A, numbers from the largest; a third press is as it was written.
        const [first, second] = isWords ? ["ascending", "descending"] : ["descending", "ascending"];
        const after = { none: first, [first]: second, [second]: "none" };
        const next = after[head.getAttribute("aria-sort") || "none"];
        heads.forEach((one) => one.removeAttribute("aria-sort"));
        let rows = asWritten;
        if (next !== "none") {
          head.setAttribute("aria-sort", next);
          const sign = next === "ascending" ? 1 : -1;
          const text = (row) => row.cells[column].textContent;
          // Absent values stay at the end, whichever way the others go.
          const known = asWritten.filter((row) => isWords || number(text(row)) !== null);
          const absent = asWritten.filter((row) => !known.includes(row));
          known.sort((one, other) => sign * compare(isWords, text(one), text(other)));
          rows = [...known, ...absent];
        }
        body.append(...rows);
      });
    });
  };

  const filterable = (table, frame) => {
    const rows = [...table.tBodies[0].rows];
    if (rows.length < FEW) return;
    const label = document.createElement("label");
    const field = document.createElement("input");
    const count = document.createElement("output");
    label.className = "filter";
    field.type = "search";
    label.append("Filter rows ", field, " ", count);
    frame.before(label);
    field.addEventListener("input", () => {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      const says = (row) => [...row.cells].map((cell) => cell.textContent.toLowerCase());
      rows.forEach((row) => {
        row.hidden = !words.every((word) => says(row).some((text) => text.includes(word)));
      });
      const shown = rows.filter((row) => !row.hidden).length;
      count.value = shown < rows.length ? `${shown} of ${rows.length} rows` : "";
    });
  };

  // What is wider than its place scrolls, by keyboard too, and its edge shows that there is more.
  const boxes = document.querySelectorAll(".panel, .wide");
  const mark = (box) => {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    const rest = box.scrollWidth - box.clientWidth - box.scrollLeft;
    box.classList.toggle("cut", rest > 1);
  };
  const markAll = () => boxes.forEach(mark);
  boxes.forEach((box) => box.addEventListener("scroll", () => mark(box)));
  addEventListener("resize", markAll);

  document.querySelectorAll("table.data").forEach((table) => {
    sortable(table);
    filterable(table, table.parentElement);
  });
  document.querySelectorAll("details").forEach((one) => one.addEventListener("toggle", markAll));
  markAll();
})();
