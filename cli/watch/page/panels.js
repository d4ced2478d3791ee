'use strict';
// The views besides charts. Each takes the page and fills an element.

async function showCompare(page, panel) {
  await page.refreshFigures();
  const runs = page.selected();
  const onlyDifferent = h('input', {type: 'checkbox'});
  onlyDifferent.checked = page.onlyDifferent;
  onlyDifferent.addEventListener('change', () => {
    page.onlyDifferent = onlyDifferent.checked;
    page.show();
  });
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.settings)))];
  const rows = names.map((name) => [name, ...runs.map((run) => name in run.settings ? run.settings[name] : '–')])
    .filter((row) => !page.onlyDifferent || new Set(row.slice(1)).size > 1);
  panel.append(h('div', {class: 'row'}, h('h2', {}, 'Settings'), h('label', {}, onlyDifferent, 'only those that differ')));
  panel.append(rows.length ? table(['Setting', ...runs.map((run) => run.name)], rows)
    : h('p', {class: 'quiet'}, runs.length < 2 ? 'Choose two runs or more to compare them.' : 'All settings are equal.'));
  panel.append(h('h2', {}, 'Figures'), compareFigures(runs));
}

// The best (or least and greatest) and the last value of each figure.
function compareFigures(runs) {
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.figures)))].sort();
  const rows = [];
  for (const name of names) {
    const figures = runs.map((run) => run.figures[name]);
    const {better} = figures.find((figure) => figure);
    const kinds = better === 'lower' ? ['min', 'last'] : better === 'higher' ? ['max', 'last'] : ['min', 'max', 'last'];
    for (const kind of kinds) {
      const values = figures.map((figure) => figure && figure[kind] ? figure[kind][1] : null);
      const numbers = values.filter((value) => typeof value === 'number');
      const best = better === 'lower' ? Math.min(...numbers) : better === 'higher' ? Math.max(...numbers) : NaN;
      const label = (better && kind !== 'last' ? 'best' : kind) + ' ' + name;
      rows.push([label, ...figures.map((figure, i) => {
        if (!figure || !figure[kind]) return h('td', {class: 'number'}, '–');
        const isBest = values[i] === best && numbers.length > 1;
        return h('td', {class: isBest ? 'number best' : 'number', title: isBest ? 'the best of these runs' : null},
          shortNumber(values[i]), h('span', {class: 'quiet'}, ` @${figure[kind][0]}`));
      })]);
    }
  }
  return rows.length ? table(['Figure', ...runs.map((run) => run.name)], rows, true) : h('p', {class: 'quiet'}, 'No figures yet.');
}

// Events of a kind and name are one card, with a slider over its steps.
async function showMedia(page, panel) {
  const kinds = {image: 'Images', figure: 'Figures', histogram: 'Histograms', table: 'Tables', profile: 'Where a step goes', text: 'Texts'};
  let isEmpty = true;
  for (const run of page.selected()) {
    const events = await page.source.events(run.id);
    for (const [kind, title] of Object.entries(kinds)) {
      const groups = new Map();
      for (const event of events.filter((each) => each.kind === kind)) {
        if (!groups.has(event.name)) groups.set(event.name, []);
        groups.get(event.name).push(event);
      }
      if (!groups.size) continue;
      isEmpty = false;
      panel.append(h('h2', {}, `${run.name}: ${title}`));
      panel.append(h('div', {class: kind === 'image' ? 'media' : 'media wide'},
        [...groups].map(([name, list]) => mediaCard(page, run, name || title, list))));
    }
  }
  if (isEmpty) panel.append(h('p', {class: 'quiet'}, 'These runs have logged no images, figures, histograms, tables or texts.'));
}

function mediaCard(page, run, name, events) {
  const place = h('div', {});
  const about = h('span', {class: 'quiet'});
  const show = (event) => {
    about.textContent = event.step == null ? clock(event.time) : `step ${event.step}`;
    place.replaceChildren(mediaBody(page, run, name, event));
  };
  show(events[events.length - 1]);
  const slider = h('input', {type: 'range', min: 0, max: events.length - 1, value: events.length - 1, 'aria-label': `Step of ${name}`,
    oninput: (change) => show(events[Number(change.target.value)])});
  return h('figure', {class: 'card'}, h('header', {}, h('h3', {}, name), about), place, events.length > 1 ? slider : null);
}

function mediaBody(page, run, name, event) {
  if (event.media_type.startsWith('image/')) {
    return h('img', {src: page.source.address(run.id, event), alt: `${name} of ${run.name}`, loading: 'lazy'});
  }
  const value = event.value;
  if (event.kind === 'histogram' && value && Array.isArray(value.counts)) return histogram(value);
  if (value && Array.isArray(value.columns) && Array.isArray(value.rows)) {
    const text = (cell) => cell == null ? '' : typeof cell === 'number' ? shortNumber(cell) : typeof cell === 'object' ? JSON.stringify(cell) : cell;
    return table(value.columns.map(String), value.rows.slice(0, 200).map((row) => row.map(text)));
  }
  return h('pre', {}, event.text != null ? event.text : JSON.stringify(value, null, 1));
}

function histogram(value) {
  const namespace = 'http://www.w3.org/2000/svg';
  const svg = document.createElementNS(namespace, 'svg');
  svg.setAttribute('viewBox', '0 0 100 40');
  svg.setAttribute('width', '100%');
  svg.setAttribute('role', 'img');
  svg.setAttribute('aria-label', `${value.num} values from ${shortNumber(value.min)} to ${shortNumber(value.max)}`);
  const greatest = Math.max(...value.counts, 1e-300);
  const [first, last] = [value.edges[0], value.edges[value.edges.length - 1]];
  const x = (edge) => 100 * (edge - first) / (last - first || 1);
  value.counts.forEach((count, i) => {
    const bar = document.createElementNS(namespace, 'rect');
    bar.setAttribute('x', x(value.edges[i]));
    bar.setAttribute('width', Math.max(0.2, (x(value.edges[i + 1]) - x(value.edges[i])) * 0.94));
    bar.setAttribute('y', 40 - 40 * count / greatest);
    bar.setAttribute('height', 40 * count / greatest);
    bar.setAttribute('fill', COLORS[0]);
    svg.append(bar);
  });
  return h('div', {}, svg, h('div', {class: 'row ends quiet'}, h('span', {}, shortNumber(first)),
    h('span', {}, `${value.num} values`), h('span', {}, shortNumber(last))));
}

// Ranks now, and how fast each was over time.
async function showRanks(page, panel) {
  let isEmpty = true;
  for (const run of page.selected()) {
    const samples = await page.source.ranks(run.id);
    if (!samples.length) continue;
    isEmpty = false;
    const now = [...samples[samples.length - 1].ranks].sort((a, b) => a[0] - b[0]);
    const front = Math.max(...now.map((rank) => rank[1]));
    const rates = now.map((rank) => rank[2]);
    const slowest = Math.min(...rates) < Math.max(...rates) ? now.find((rank) => rank[2] === Math.min(...rates))[0] : null;
    panel.append(h('h2', {}, `${run.name} `, h('span', {class: 'quiet'}, clock(samples[samples.length - 1].time))));
    panel.append(table(['Rank', 'step', 'behind', 'steps/s', 'memory (MB)'], now.map(([rank, step, rate, memory]) => [
      `rank ${rank}`, step, front - step,
      h('td', {class: rank === slowest ? 'number slow' : 'number'}, shortNumber(rate), rank === slowest ? ' slowest' : ''),
      Math.round(memory)]), true));
    panel.append(h('p', {class: 'quiet'}, 'Rate of each rank over time; the redder, the slower than the median of all.'), lanes(samples));
  }
  if (isEmpty) panel.append(h('p', {class: 'quiet'}, 'These runs have not told about their ranks.'));
}

const MOST_LANE_LABELS = 32;

function lanes(samples) {
  const ids = [...new Set(samples.flatMap((sample) => sample.ranks.map((rank) => rank[0])))].sort((a, b) => a - b);
  const height = Math.max(6, Math.min(18, Math.floor(400 / ids.length)));
  const canvas = h('canvas', {role: 'img', 'aria-label': 'timeline of the rates of ranks', width: 900, height: height * ids.length,
    style: `height: ${height * ids.length}px`});
  const draw = canvas.getContext('2d');
  const [first, last] = [samples[0].time, samples[samples.length - 1].time];
  samples.forEach((sample, i) => {
    const rates = sample.ranks.map((rank) => rank[2]).sort((a, b) => a - b);
    const median = rates[Math.floor(rates.length / 2)] || 1;
    const x = (time) => 900 * (time - first) / (last - first || 1);
    const from = i ? x(samples[i - 1].time) : 0;
    const to = samples.length === 1 ? 900 : x(sample.time);
    for (const [rank, , rate] of sample.ranks) {
      const slowness = Math.max(0, Math.min(1, 2 * (1 - rate / median)));
      draw.fillStyle = `hsl(${Math.round(150 - 150 * slowness)} 45% ${Math.round(50 - 6 * slowness)}%)`;
      draw.fillRect(from, ids.indexOf(rank) * height, Math.max(1, to - from), height - 1);
    }
  });
  const labels = h('ol', {style: `line-height: ${height}px`},
    ids.length <= MOST_LANE_LABELS && height >= 12 ? ids.map((id) => h('li', {}, `rank ${id}`)) : null);
  return h('div', {class: 'lanes'}, labels, canvas, h('div', {class: 'row ends'}, h('span', {}, clock(first)), h('span', {}, clock(last))));
}

async function showEvents(page, panel) {
  const rows = [];
  for (const run of page.selected()) {
    for (const event of await page.source.events(run.id)) {
      if (event.kind === 'checkpoint') rows.push([event.time, run.name, 'checkpoint', event.step, event.name]);
      if (event.kind === 'warning') rows.push([event.time, run.name, 'warning', event.step, event.text]);
    }
    run.sessions.forEach(([begin], i) => rows.push([begin, run.name, i ? 'resumed' : 'began', null, i ? `process ${i + 1}` : run.directory]));
    if (run.problem)
      rows.push([run.end, run.name, 'damage', null, run.problem]);
    if (run.damaged) rows.push([run.end, run.name, 'damage', null, `${run.damaged} bytes of the journal cannot be read`]);
  }
  rows.sort((a, b) => b[0] - a[0]);
  panel.append(table(['When', 'Run', 'What', 'Step', 'Text'], rows.map(([time, name, kind, step, text]) => [
    clock(time), name, h('td', {class: kind === 'warning' || kind === 'damage' ? 'warning' : null}, kind), step == null ? '' : step, text])));
}
