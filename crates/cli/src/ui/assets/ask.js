// Questions to the server. An answer is a document; a refusal is thrown as one sentence with its hint.

const sentence = ({ message, hint }) => (hint ? `${message}. Hint: ${hint}` : message);

async function answer(request, doubt) {
  let response;
  try {
    response = await request;
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Error(`crowfly ui does not answer: ${doubt}`);
  }
  const document = await response.json();
  if (!response.ok) throw new Error(sentence(document.error));
  return document;
}

export const query = (pairs) => new URLSearchParams(pairs).toString();

export const ask = (path, pairs = [], signal = undefined) =>
  answer(fetch(`/api/${path}?${query(pairs)}`, { signal }), 'is it still running?');

export const send = (path, body, headers = {}) =>
  answer(fetch(`/api/${path}`, { method: 'POST', body, headers }),
    'is it still running, and can the file still be read?');

// The last question counts: asking again gives up the one before.
export function latest() {
  let before;
  return (path, pairs) => {
    before?.abort();
    before = new AbortController();
    return ask(path, pairs, before.signal);
  };
}

export const isGivenUp = (error) => error.name === 'AbortError';
