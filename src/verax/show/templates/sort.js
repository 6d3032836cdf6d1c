"use strict";
for (const table of document.querySelectorAll("table.listing")) {
  const body = table.tBodies[0];
  const value = (row, k) => {
    const text = row.cells[k] ? row.cells[k].textContent.replace(/,/g, "").replace("−", "-") : "";
    const number = parseFloat(text);
    return Number.isNaN(number) ? text.toLowerCase() : number;
  };
  [...table.tHead.rows[0].cells].forEach((cell, k) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = cell.textContent;
    button.title = "sort";
    let up = false;
    button.addEventListener("click", () => {
      up = !up;
      const rows = [...body.rows].sort((a, b) => {
        const x = value(a, k), y = value(b, k);
        const order = typeof x === typeof y ? (x < y ? -1 : x > y ? 1 : 0) : typeof x === "number" ? -1 : 1;
        return up ? order : -order;
      });
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      cell.setAttribute("aria-sort", up ? "ascending" : "descending");
      body.append(...rows);
    });
    cell.replaceChildren(button);
  });
  if (body.rows.length > 8) {
    const search = document.createElement("input");
    search.type = "search";
    search.placeholder = "search";
    search.setAttribute("aria-label", "search this table");
    search.addEventListener("input", () => {
      const wanted = search.value.toLowerCase();
      for (const row of body.rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
    });
    (table.closest(".wide") || table).before(search);
  }
}
