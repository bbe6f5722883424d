// What is known of an answer, in words first and as a table behind them.

import { element } from "./view.js";

// facts: headline, sentences, rows of (label, text).
export function showFacts(root, { headline, sentences, rows }) {
  const table = element("table");
  for (const [label, text] of rows) {
    const row = table.insertRow();
    row.append(element("th", { textContent: label, scope: "row" }));
    row.append(element("td", { textContent: text }));
  }
  const details = element("details");
  details.append(element("summary", { textContent: "The whole report" }), table);
  root.replaceChildren(
    element("p", { className: "headline", textContent: headline }),
    ...sentences.map((textContent) => element("p", { textContent })),
    details,
  );
}
