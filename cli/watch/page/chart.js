'use strict';
// One chart of one figure of several runs.

const FAINT = '40';  // opacity of values behind their average, in hex
const MOST_FAINT_RUNS = 6;
const MOST_MARKED_RUNS = 6;  // whose checkpoints are marked
const MOST_LINES = 30;
const FULL_RUNS = 10;  // of which curves are as fine as the screen

class ChartCard {
  // fetchCurves(options): {run id: {steps, times, values, count}}
  constructor(title, fetchCurves, settings, canZoom) {
    this.title = title;
    this.fetchCurves = fetchCurves;
    this.settings = settings;
    this.canZoom = canZoom;
    this.range = null;
    this.curves = {};
    this.raw = {};
    this.isVisible = false;
    this.isStale = true;
    this.generation = 0;
    this.reset = h('button', {type: 'button', hidden: true, onclick: () => this.zoomTo(null)}, 'Whole run');
    this.canvas = h('canvas', {role: 'img', tabindex: '0'});
    this.plot = h('div', {class: 'plot'}, this.canvas);
    this.element = h('figure', {class: 'card', 'data-figure': title},
      h('header', {}, h('h3', {}, title, h('span', {class: 'quiet'}, unitOf(title) && ` (${unitOf(title)})`)), this.reset), this.plot);
    this.refetchSoon = later(150, () => this.refetch());
    if (canZoom) this.listenForZoom();
    this.observer = new IntersectionObserver((entries) => {
      this.isVisible = entries[entries.length - 1].isIntersecting;
      if (this.isVisible && this.isStale) this.refetch();
    }, {rootMargin: '200px'});
    this.observer.observe(this.element);
  }

  destroy() {
    this.observer.disconnect();
    if (this.chart) this.chart.destroy();
    this.chart = null;
    this.generation += 1;
  }

  invalidate() {
    this.isStale = true;
    if (this.isVisible) this.refetchSoon();
  }

  async refetch() {
    this.isStale = false;
    const generation = ++this.generation;
    const fine = Math.min(1, FULL_RUNS / Math.max(1, this.settings.selected().length));
    const columns = Math.max(100, Math.round(fine * (this.plot.clientWidth || 400)));
    const options = {columns, range: this.range, smoothing: this.canZoom ? this.settings.smoothing : 0};
    const hasFaint = options.smoothing > 0 && this.settings.selected().length <= MOST_FAINT_RUNS;
    const [curves, raw] = await Promise.all([
      this.fetchCurves(options),
      hasFaint ? this.fetchCurves({...options, smoothing: 0}) : {}]);
    // A later request has been made meanwhile, or the card has gone.
    if (generation !== this.generation) return;
    this.curves = curves;
    this.raw = raw;
    this.numAppended = 0;
    this.draw();
  }

  // Points that a run has got; false if they do not follow what is there.
  append(id, added) {
    const curve = this.curves[id];
    if (this.isStale || this.range) return this.isStale;
    if (this.settings.smoothing > 0 || !curve || added.at > curve.count) return false;
    const skip = curve.count - added.at;
    if (skip >= added.steps.length) return true;
    for (const key of ['steps', 'times', 'values']) {
      for (const value of added[key].slice(skip)) curve[key].push(value);
    }
    curve.count = added.at + added.steps.length;
    this.numAppended += added.steps.length - skip;
    // The server thins the curve out.
    if (this.numAppended > 2 * this.plot.clientWidth) return false;
    this.draw();
    return true;
  }

  dataset(run, curve, isFaint) {
    const data = curve.values.map((y, i) => ({x: this.settings.x(run, curve, i), y, step: curve.steps[i]}));
    return {
      label: run.name, data, borderColor: colorOf(run) + (isFaint ? FAINT : ''),
      borderWidth: isFaint ? 1 : 1.6, borderDash: dashOf(run), isFaint,
      pointRadius: data.length === 1 ? 3 : 0, pointHitRadius: 6, backgroundColor: colorOf(run), tension: 0,
    };
  }

  draw() {
    const runs = this.settings.selected();
    const datasets = [];
    for (const run of runs) if (this.raw[run.id]) datasets.push(this.dataset(run, this.raw[run.id], true));
    for (const run of runs) if (this.curves[run.id]) datasets.push(this.dataset(run, this.curves[run.id], false));
    if (this.chart) this.chart.destroy();
    this.chart = new Chart(this.canvas, {type: 'line', data: {datasets}, options: this.options(),
      plugins: [{id: 'checkpoints', afterDatasetsDraw: (chart) => this.drawCheckpoints(chart)}]});
    this.canvas.setAttribute('aria-label', this.title + ': ' + runs.filter((run) => this.curves[run.id]).map((run) => {
      const values = this.curves[run.id].values;
      return `${run.name} ${shortNumber(values[values.length - 1])}`;
    }).join(', '));
  }

  options() {
    const quiet = cssColor('--quiet');
    const grid = cssColor('--grid');
    const settings = this.settings;
    return {
      animation: false, parsing: false, normalized: true, responsive: true, maintainAspectRatio: false, spanGaps: false,
      interaction: {mode: 'nearest', axis: 'x', intersect: false},
      scales: {
        x: {type: 'linear', grid: {color: grid}, ticks: {color: quiet, maxRotation: 0, autoSkipPadding: 12, callback: (value) => settings.xText(value)}},
        y: {type: settings.isLog && this.canZoom ? 'logarithmic' : 'linear', grid: {color: grid}, ticks: {color: quiet, maxTicksLimit: 7, callback: shortNumber}},
      },
      plugins: {
        legend: {display: false},
        tooltip: {
          filter: (item) => !item.dataset.isFaint,
          callbacks: {
            title: (items) => items.length ? (this.canZoom ? `step ${items[0].raw.step}` : settings.xText(items[0].raw.x)) : '',
            label: (item) => ` ${item.dataset.label}: ${shortNumber(item.raw.y)}`,
            footer: (items) => this.checkpointTexts(items),
          },
        },
      },
    };
  }

  // The checkpoints in sight: where they are in pixels, their run and name.
  checkpoints(chart) {
    const runs = this.settings.selected().filter((run) => this.curves[run.id]);
    if (runs.length > MOST_MARKED_RUNS) return [];
    const {left, right} = chart.chartArea;
    return runs.flatMap((run) => run.checkpoints.map(([step, time, name]) => ({
      run, name, step, x: chart.scales.x.getPixelForValue(this.settings.x(run, {steps: [step], times: [time]}, 0))})))
      .filter(({x}) => x >= left - 0.5 && x <= right + 0.5);
  }

  drawCheckpoints(chart) {
    const marks = this.checkpoints(chart);
    const {ctx, chartArea: {top, bottom}} = chart;
    ctx.save();
    ctx.setLineDash([2, 4]);
    for (const {run, x} of marks) {
      ctx.fillStyle = colorOf(run);
      ctx.strokeStyle = colorOf(run) + FAINT;
      ctx.beginPath();
      ctx.moveTo(x, bottom - 8);
      ctx.lineTo(x - 5, bottom);
      ctx.lineTo(x + 5, bottom);
      ctx.fill();
      if (marks.length > MOST_LINES) continue;
      ctx.beginPath();
      ctx.moveTo(x, top);
      ctx.lineTo(x, bottom - 8);
      ctx.stroke();
    }
    ctx.restore();
  }

  // Checkpoints where the pointer is.
  checkpointTexts(items) {
    if (!items.length) return [];
    return this.checkpoints(items[0].chart).filter(({x}) => Math.abs(x - items[0].element.x) < 6)
      .map(({run, name, step}) => `▲ ${run.name}: ${name} (step ${step})`);
  }

  // Steps of the points between two places on the x axis.
  stepsBetween(x0, x1) {
    let least = Infinity;
    let greatest = -Infinity;
    for (const {data} of this.chart.data.datasets) {
      for (const {x, step} of data) {
        if (x < x0 || x > x1) continue;
        least = Math.min(least, step);
        greatest = Math.max(greatest, step);
      }
    }
    return least < greatest ? [least, greatest] : null;
  }

  zoomTo(range) {
    this.range = range;
    this.reset.hidden = !range;
    this.refetch();
  }

  listenForZoom() {
    let from = null;
    const selection = h('div', {class: 'selection', hidden: true});
    this.plot.append(selection);
    const place = (event) => event.clientX - this.canvas.getBoundingClientRect().left;
    this.canvas.addEventListener('pointerdown', (event) => {
      if (event.button === 0 && event.pointerType !== 'touch') from = place(event);
    });
    this.canvas.addEventListener('pointermove', (event) => {
      if (from == null) return;
      selection.hidden = false;
      selection.style.left = Math.min(from, place(event)) + 'px';
      selection.style.width = Math.abs(place(event) - from) + 'px';
    });
    window.addEventListener('pointerup', (event) => {
      if (from == null || !this.chart) return;
      const ends = [from, place(event)].sort((a, b) => a - b);
      from = null;
      selection.hidden = true;
      if (ends[1] - ends[0] < 8) return;
      const range = this.stepsBetween(...ends.map((x) => this.chart.scales.x.getValueForPixel(x)));
      if (range) this.zoomTo(range);
    });
    this.canvas.addEventListener('dblclick', () => this.zoomTo(null));
    this.canvas.addEventListener('keydown', (event) => this.zoomByKey(event));
  }

  zoomByKey(event) {
    const whole = this.chart && this.stepsBetween(-Infinity, Infinity);
    const moves = {'+': [0.25, -0.25], '=': [0.25, -0.25], '-': [-0.5, 0.5], ArrowLeft: [-0.25, -0.25], ArrowRight: [0.25, 0.25]};
    if (event.key === 'Escape') this.zoomTo(null);
    if (!whole || !moves[event.key]) return;
    event.preventDefault();
    const [left, right] = this.range || whole;
    const width = right - left;
    this.zoomTo([Math.round(left + moves[event.key][0] * width), Math.round(right + moves[event.key][1] * width)]);
  }
}
