'use strict';
// Elements and texts.

// h('p', {class: 'quiet'}, 'text', child): an element. Texts are never markup.
function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, '');
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  for (const child of children.flat()) {
    if (child != null) element.append(child);
  }
  return element;
}

const byId = (id) => document.getElementById(id);

function shortNumber(value) {
  if (value == null) return '';
  if (typeof value === 'string') return value;
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return String(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(3);
  return String(Number(value.toPrecision(5)));
}

function duration(seconds) {
  if (seconds < 60) return seconds.toFixed(seconds < 10 ? 1 : 0) + ' s';
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

// What the end of a figure's name says about its values.
const UNITS = {percent: '%', mb: 'MB', seconds: 's', per_second: 'per second', ms: 'ms'};

function unitOf(name) {
  const found = Object.keys(UNITS).filter((end) => name.endsWith('_' + end)).sort((a, b) => b.length - a.length)[0];
  return found ? UNITS[found] : '';
}

const clock = (seconds) => new Date(seconds * 1000).toLocaleString();

// Colours that differ for most eyes, on both papers; later runs are dashed.
const COLORS = ['#3b7dd8', '#e07b16', '#2a9d5c', '#d1495b', '#8f63c9', '#a5713c', '#d65fa6', '#7a838e', '#a3a21a', '#17a2b0'];
const DASHES = [[], [6, 4], [2, 3]];
const colorOf = (run) => COLORS[run.id % COLORS.length];
const dashOf = (run) => DASHES[Math.floor(run.id / COLORS.length) % DASHES.length];

const cssColor = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function later(wait, action) {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(action, wait);
  };
}

function table(heading, rows, numeric) {
  const isNumber = (i) => i > 0 && numeric;
  return h('div', {class: 'scroll', tabindex: '0', role: 'region', 'aria-label': heading[0]},
    h('table', {},
      h('thead', {}, h('tr', {}, heading.map((text, i) =>
        h('th', {scope: 'col', class: isNumber(i) ? 'number' : null}, text)))),
      h('tbody', {}, rows.map((row) => h('tr', {}, row.map((cell, i) => {
        if (cell instanceof Node) return cell;
        if (i === 0) return h('th', {scope: 'row'}, String(cell));
        return h('td', {class: isNumber(i) ? 'number' : null}, String(cell));
      }))))));
}
