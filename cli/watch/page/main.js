'use strict';
// The page: which runs and which view are chosen, and what changes arrive.

const TABS = {charts: 'Charts', compare: 'Compare', media: 'Media', system: 'System', ranks: 'Ranks', events: 'Events'};
const MOST_AT_FIRST = 50;

class Page {
  constructor(source) {
    this.source = source;
    this.runs = [];
    this.chosen = new Set();
    this.tab = 'charts';
    this.cards = new Map();
    this.smoothing = 0;
    this.isLog = false;
    this.xAxis = 'step';
    this.filter = '';
    this.onlyDifferent = true;
    this.shown = 0;
    this.hasOldFigures = false;
    this.refreshRuns = later(1000, () => this.load());
    this.reshow = later(1000, () => this.show());
  }

  // The extremes of figures do not come with changes.
  async refreshFigures() {
    if (this.hasOldFigures) this.runs = await this.source.runs();
    this.hasOldFigures = false;
  }

  // A run has got events: its checkpoints and warnings may be others.
  async refreshMarks(run) {
    const {checkpoints, warnings} = await this.source.run(run.id);
    if (checkpoints.length === run.checkpoints.length && warnings === run.warnings) return;
    Object.assign(run, {checkpoints, warnings});
    this.showRuns();
    this.updateKey();
    this.redraw();
  }

  updateKey() {
    if (this.key) this.key.hidden = !this.selected().some((run) => run.checkpoints.length);
  }

  selected() { return this.runs.filter((run) => this.chosen.has(run.id)); }

  x(run, curve, i) {
    if (this.xAxis === 'step') return curve.steps[i];
    return this.xAxis === 'relative' ? curve.times[i] : run.begin + curve.times[i];
  }

  xText(value) {
    if (this.xAxis === 'step') return shortNumber(value);
    if (this.xAxis === 'relative') return duration(value);
    return new Date(value * 1000).toLocaleTimeString([], {hour: '2-digit', minute: '2-digit', second: '2-digit'});
  }

  async load() {
    const known = new Set(this.runs.map((run) => run.id));
    this.runs = await this.source.runs();
    for (const run of this.runs) {
      if (!known.has(run.id) && this.chosen.size < MOST_AT_FIRST) this.chosen.add(run.id);
    }
    this.showRuns();
    if (this.tab === 'charts') this.updateCharts();
  }

  async start() {
    byId('tabs').append(...Object.entries(TABS).map(([key, title]) => h('button', {
      type: 'button', role: 'tab', id: `tab-${key}`, 'aria-controls': 'panel', onclick: () => this.choose(key)}, title)));
    byId('tabs').addEventListener('keydown', (event) => this.moveTab(event));
    byId('runs-filter').addEventListener('input', () => this.showRuns());
    byId('runs-all').addEventListener('click', () => this.chooseRuns(true));
    byId('runs-none').addEventListener('click', () => this.chooseRuns(false));
    if (matchMedia('(max-width: 760px)').matches) byId('runs-details').open = false;
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.redraw());
    this.source.listen((changes) => this.take(changes), () => this.reload(), (state) => this.setState(state));
    if (!this.source.isLive) this.setState('copy');
    await this.load();
    this.show();
    document.documentElement.dataset.ready = 'yes';
  }

  setState(state) {
    const texts = {live: 'live', lost: 'connection lost; trying again', copy: 'a copy'};
    byId('status').className = 'status ' + state;
    byId('status').textContent = texts[state];
  }

  async reload() {
    await this.load();
    this.show();
  }

  choose(tab) {
    this.tab = tab;
    this.show();
  }

  moveTab(event) {
    const move = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (!move) return;
    const keys = Object.keys(TABS);
    this.choose(keys[(keys.indexOf(this.tab) + move + keys.length) % keys.length]);
    byId(`tab-${this.tab}`).focus();
  }

  chooseRuns(isOn) {
    for (const run of this.runs) {
      if (this.matches(run)) this.chosen[isOn ? 'add' : 'delete'](run.id);
    }
    this.showRuns();
    this.show();
  }

  matches(run) { return run.name.toLowerCase().includes(byId('runs-filter').value.toLowerCase()); }

  showRuns() {
    const about = (run) => (run.step == null ? 'no steps' : `step ${run.step}`) + ', ' + duration(run.end - run.begin);
    byId('runs').replaceChildren(...this.runs.filter((run) => this.matches(run)).map((run) => {
      const box = h('input', {type: 'checkbox', onchange: () => {
        this.chosen[box.checked ? 'add' : 'delete'](run.id);
        this.show();
      }});
      box.checked = this.chosen.has(run.id);
      return h('li', {}, h('label', {}, box, h('span', {class: 'swatch', style: `--color: ${colorOf(run)}`}),
        h('span', {class: 'name'}, run.name), h('span', {class: 'about', 'data-about': run.id}, about(run))),
      run.warnings ? h('button', {type: 'button', class: 'warnings', onclick: () => this.choose('events')},
        `⚠ ${run.warnings} ${run.warnings === 1 ? 'warning' : 'warnings'}`) : null);
    }));
    const numWarnings = this.runs.reduce((sum, run) => sum + run.warnings, 0);
    byId('tab-events').textContent = TABS.events + (numWarnings ? ` ⚠ ${numWarnings}` : '');
    byId('runs-count').textContent = `(${this.runs.length})`;
    const title = this.runs.length === 1 ? this.runs[0].name : `${this.runs.length} runs`;
    byId('title').textContent = title;
    document.title = title;
  }

  redraw() {
    for (const card of this.cards.values()) if (card.chart) card.draw();
  }

  async show() {
    for (const key of Object.keys(TABS)) {
      byId(`tab-${key}`).setAttribute('aria-selected', key === this.tab);
      byId(`tab-${key}`).tabIndex = key === this.tab ? 0 : -1;
    }
    const shown = ++this.shown;
    if (this.tab === 'charts' && this.hasCharts) {
      this.updateCharts();
      for (const card of this.cards.values()) card.invalidate();
      return;
    }
    const place = h('div', {});
    const views = {
      charts: () => this.showCharts(place), compare: () => showCompare(this, place), media: () => showMedia(this, place),
      system: () => this.showSystem(place), ranks: () => showRanks(this, place), events: () => showEvents(this, place)};
    const stale = [...this.cards.values()];
    this.cards = new Map();
    await views[this.tab]();
    // Another view has been chosen meanwhile.
    if (shown !== this.shown) return;
    for (const card of stale) card.destroy();
    this.hasCharts = this.tab === 'charts';
    byId('panel').replaceChildren(place);
    byId('panel').setAttribute('aria-labelledby', `tab-${this.tab}`);
  }

  controls() {
    const smoothing = h('input', {type: 'range', min: 0, max: 0.99, step: 0.01, value: this.smoothing, id: 'smoothing'});
    const output = h('output', {for: 'smoothing'}, String(this.smoothing));
    const invalidate = () => { for (const card of this.cards.values()) card.invalidate(); };
    smoothing.addEventListener('input', () => {
      this.smoothing = Number(smoothing.value);
      output.textContent = smoothing.value;
      invalidate();
    });
    const log = h('input', {type: 'checkbox', id: 'log-axis'});
    log.checked = this.isLog;
    log.addEventListener('change', () => {
      this.isLog = log.checked;
      this.redraw();
    });
    const axis = h('select', {id: 'x-axis'}, h('option', {value: 'step'}, 'step'), h('option', {value: 'relative'}, 'time since start'),
      h('option', {value: 'wall'}, 'time of day'));
    axis.value = this.xAxis;
    axis.addEventListener('change', () => {
      this.xAxis = axis.value;
      this.redraw();
    });
    const filter = h('input', {type: 'search', placeholder: 'Filter figures', 'aria-label': 'Filter figures', id: 'figures-filter'});
    filter.value = this.filter;
    filter.addEventListener('input', () => {
      this.filter = filter.value;
      this.updateCharts();
    });
    this.key = h('span', {class: 'quiet', hidden: true, id: 'checkpoint-key'}, '▲ checkpoint');
    return h('div', {class: 'row'}, filter, h('label', {}, 'Smoothing', smoothing, output), h('label', {}, log, 'Log axis'), h('label', {}, 'Over', axis), this.key);
  }

  showCharts(place) {
    if (typeof Chart === 'undefined') {
      place.append(h('p', {class: 'notice'}, 'Chart.js was not installed when accelerate-cpp was built (Debian: libjs-chart.js), so this page has no curves; accelerate-cpp watch has.'));
      return;
    }
    this.grid = h('div', {class: 'cards'});
    place.append(this.controls(), this.grid);
    this.updateCharts();
  }

  // Adds cards of figures that are new and removes those that are not wanted.
  updateCharts() {
    if (!this.grid || typeof Chart === 'undefined') return;
    this.updateKey();
    const wanted = [...new Set(this.selected().flatMap((run) => Object.keys(run.figures)))]
      .filter((name) => name.toLowerCase().includes(this.filter.toLowerCase())).sort();
    for (const [name, card] of this.cards) {
      if (wanted.includes(name)) continue;
      card.destroy();
      card.element.remove();
      this.cards.delete(name);
    }
    let before = null;
    for (const name of wanted) {
      if (!this.cards.has(name)) {
        this.cards.set(name, new ChartCard(name, (options) => this.source.series(name, this.selected().map((run) => run.id), options), this, true));
      }
      const element = this.cards.get(name).element;
      const place = before ? before.nextSibling : this.grid.firstChild;
      if (place !== element) this.grid.insertBefore(element, place);
      before = element;
    }
  }

  async showSystem(place) {
    if (typeof Chart === 'undefined') return this.showCharts(place);
    const runs = this.selected();
    const all = await Promise.all(runs.map((run) => this.source.system(run.id)));
    const names = [...new Set(all.flatMap((figures) => Object.keys(figures)))].sort();
    const axes = {
      selected: () => this.selected(), smoothing: 0, isLog: false,
      x: (run, curve, i) => curve.times[i], xText: duration};
    place.append(names.length ? h('div', {class: 'cards'}, names.map((name) => {
      const curves = {};
      runs.forEach((run, i) => { if (all[i][name]) curves[run.id] = all[i][name]; });
      const card = new ChartCard(name, async () => curves, axes, false);
      this.cards.set(name, card);
      return card.element;
    })) : h('p', {class: 'quiet'}, 'These runs have logged no figures of the machine.'));
  }

  take(changes) {
    for (const change of changes) {
      const run = this.runs.find((each) => each.id === change.id);
      if (change.is_new || !run) {
        this.refreshRuns();
        continue;
      }
      run.end = change.end;
      run.step = change.step;
      this.hasOldFigures = true;
      const about = document.querySelector(`[data-about="${run.id}"]`);
      if (about) about.textContent = `step ${run.step}, ${duration(run.end - run.begin)}`;
      if (change.has_events) this.refreshMarks(run);
      if (!this.chosen.has(run.id)) continue;
      if (this.tab === 'charts') this.takePoints(run, change);
      if (this.tab === 'compare') this.reshow();
      if ((this.tab === 'system' && change.has_system) || (this.tab === 'ranks' && change.has_ranks)) this.reshow();
      if (change.has_events && (this.tab === 'media' || this.tab === 'events')) this.reshow();
    }
  }

  takePoints(run, change) {
    for (const [name, added] of Object.entries(change.figures)) {
      const card = this.cards.get(name);
      if (!card) {
        if (!(name in run.figures)) this.refreshRuns();
      } else if (!card.append(run.id, added)) {
        card.invalidate();
      }
    }
    for (const name of change.resets) {
      if (this.cards.has(name)) this.cards.get(name).invalidate();
    }
  }
}

const data = JSON.parse(byId('data').textContent);
const page = new Page(data.token ? new LiveSource(data.token) : new StaticSource(data));
page.start();
