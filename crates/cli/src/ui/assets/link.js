// What the page shows stands in the fragment of its address: `#plan?servers=64&model=70b`.

export const PARTS = ['routes', 'plan', 'doctor'];

export function read() {
  const [part, pairs = ''] = location.hash.slice(1).split('?');
  return {
    part: PARTS.includes(part) ? part : PARTS[0],
    state: new Map(new URLSearchParams(pairs)),
  };
}

// Replaces the address, so that going back leads to where the reader came from.
export function write(part, pairs) {
  const text = new URLSearchParams(pairs).toString();
  const hash = text ? `#${part}?${text}` : `#${part}`;
  if (hash !== location.hash) history.replaceState(null, '', hash);
}
