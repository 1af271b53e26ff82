// An input of the class `table-filter` shows those rows of the next table that have all of its words.
for (const input of document.querySelectorAll("input.table-filter")) {
  let next = input.closest("p") ?? input;
  while (next && !next.querySelector?.("table") && next.tagName !== "TABLE") next = next.nextElementSibling;
  const rows = next ? [...next.querySelectorAll("tbody tr")] : [];
  input.hidden = rows.length === 0;
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/);
    for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
  });
}
