'use strict';
// Where data comes from: the server, or what a report has in it.

class LiveSource {
  constructor(token) {
    this.token = token;
    this.isLive = true;
  }

  url(path, parameters) {
    return path + '?' + new URLSearchParams({...parameters, token: this.token});
  }

  async get(path, parameters) {
    const answer = await fetch(this.url(path, parameters));
    if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
    return answer.json();
  }

  runs() { return this.get('/api/runs'); }
  run(id) { return this.get('/api/run', {run: id}); }
  system(id) { return this.get('/api/system', {run: id, columns: 400}); }
  ranks(id) { return this.get('/api/ranks', {run: id}); }
  events(id) { return this.get('/api/events', {run: id}); }
  address(id, event) { return this.url('/api/body', {run: id, event: event.index}); }

  series(name, ids, options) {
    const parameters = {name, runs: ids.join(','), columns: options.columns, smoothing: options.smoothing};
    if (options.range) [parameters.from, parameters.to] = options.range;
    return this.get('/api/series', parameters);
  }

  listen(onChanges, onMissed, onState) {
    const stream = new EventSource(this.url('/api/stream'));
    let wasLost = false;
    stream.addEventListener('open', () => {
      onState('live');
      if (wasLost) onMissed();
      wasLost = false;
    });
    stream.addEventListener('error', () => {
      wasLost = true;
      onState('lost');
    });
    stream.addEventListener('changes', (event) => onChanges(JSON.parse(event.data)));
    stream.addEventListener('missed', onMissed);
  }
}

class StaticSource {
  constructor(data) {
    this.data = data;
    this.isLive = false;
  }

  async runs() { return this.data.runs; }
  async run(id) { return this.data.runs[id]; }
  async system(id) { return this.data.system[id]; }
  async ranks(id) { return this.data.ranks[id]; }
  async events(id) { return this.data.events[id]; }
  address(id, event) { return event.address; }

  async series(name, ids, options) {
    const found = {};
    for (const id of ids) {
      const curve = (this.data.series[name] || {})[id];
      if (curve) found[id] = inRange(smooth(curve, options.smoothing), options.range);
    }
    return found;
  }

  listen() {}
}

// Exponential moving average without the bias of its beginning.
function smooth(curve, smoothing) {
  if (!smoothing) return curve;
  let sum = 0;
  let weight = 0;
  const values = curve.values.map((value) => {
    if (value == null) return null;
    sum = smoothing * sum + (1 - smoothing) * value;
    weight = smoothing * weight + (1 - smoothing);
    return sum / weight;
  });
  return {...curve, values};
}

function inRange(curve, range) {
  if (!range) return curve;
  const keep = (list) => list.filter((_, i) => curve.steps[i] >= range[0] && curve.steps[i] <= range[1]);
  return {count: curve.count, steps: keep(curve.steps), times: keep(curve.times), values: keep(curve.values)};
}
