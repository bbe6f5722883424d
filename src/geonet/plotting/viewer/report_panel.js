// The report on a path: sentences, and a table that can be opened.

import { createElement } from "./view.js";

// report: headline, sentences, and rows of (label, text).
export function showReport(root, { headline, sentences, rows }) {
  const table = createElement("table");
  for (const [label, text] of rows) {
    const row = table.insertRow();
    row.append(createElement("th", { textContent: label, scope: "row" }));
    row.append(createElement("td", { textContent: text }));
  }
  const open = root.querySelector("details")?.open ?? false;
  const details = createElement("details", { open });
  details.append(createElement("summary", { textContent: "Full report" }), table);
  root.replaceChildren(
    createElement("p", { className: "headline", textContent: headline }),
    ...sentences.map((textContent) => createElement("p", { textContent })),
    details,
  );
}
