// Findings of files, of pasted text, and of the machine at hand.

import { ask, send } from './ask.js';
import { byId, written } from './dom.js';
import { drops } from './drop.js';

let mostBytes = 0;
let dropped = [];

export function start(about) {
  mostBytes = about.evidence_bytes;
  byId('doctor-form').addEventListener('submit', (event) => {
    event.preventDefault();
    explain();
  });
  byId('evidence').addEventListener('change', () => {
    dropped = [];
  });
  drops(document.querySelector('[data-drop=evidence]'), (files) => {
    dropped = files;
    explain();
  });
  byId('look-here').addEventListener('click', () => answer(ask('doctor')));
  // Findings are linked within the report; the page's address is not theirs to change.
  byId('findings').addEventListener('click', (event) => {
    const link = event.target.closest('a[href^="#"]');
    if (!link) return;
    event.preventDefault();
    const finding = byId(link.hash.slice(1));
    finding?.setAttribute('tabindex', '-1');
    finding?.focus();
    finding?.scrollIntoView();
  });
}

export function open() {}

function explain() {
  const form = new FormData();
  const files = dropped.length > 0 ? dropped : [...byId('evidence').files];
  for (const file of files) form.append('file', file, file.name);
  const pasted = byId('pasted').value;
  if (pasted.trim()) form.append('file', new Blob([pasted]), 'pasted.txt');
  const bytes = files.reduce((sum, file) => sum + file.size, pasted.length);
  if (!form.has('file')) return fail('Choose a file, or paste something.');
  if (bytes > mostBytes) {
    return fail('That is too much for the page: `crowfly explain FILE…` reads files of any size.');
  }
  return answer(send('explain', form));
}

function fail(message) {
  byId('doctor-said').textContent = '';
  byId('doctor-error').textContent = message;
}

async function answer(question) {
  byId('doctor-error').textContent = '';
  byId('doctor-said').textContent = 'Reading…';
  try {
    const { command, report, document: found } = await question;
    written(byId('findings'), report);
    const count = found.findings.length;
    byId('doctor-said').textContent = `${count} ${count === 1 ? 'finding' : 'findings'}. ${found.headline}`;
    byId('doctor-command').textContent = command;
    byId('doctor-cli').hidden = false;
    byId('findings').focus({ preventScroll: true });
  } catch (error) {
    fail(error.message);
  }
}
