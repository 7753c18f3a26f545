// Files that are dropped onto an area, as if they had been chosen in its field.

export function drops(area, take) {
  const over = (on) => area.classList.toggle('is-over', on);
  area.addEventListener('dragover', (event) => {
    event.preventDefault();
    over(true);
  });
  area.addEventListener('dragleave', () => over(false));
  area.addEventListener('drop', (event) => {
    event.preventDefault();
    over(false);
    if (event.dataTransfer.files.length > 0) take([...event.dataTransfer.files]);
  });
}

// A file that misses its area must not replace the page.
for (const kind of ['dragover', 'drop']) {
  window.addEventListener(kind, (event) => event.preventDefault());
}
