"use strict";

const touch = matchMedia("(pointer: coarse)").matches;
const dark = matchMedia("screen and (prefers-color-scheme: dark)");  // paper is always light
const onDark = JSON.parse(document.getElementById("dark").textContent);
const DASHES = {solid: "", dash: "9 5", dot: "2 4", dashdot: "9 4 2 4", longdash: "15 5",
  longdashdot: "15 4 2 4"};
const charts = [];

// plotly's own picture would lack the legend.
const camera = {
  name: "picture", title: "Download plot as a PNG", icon: Plotly.Icons.camera,
  click: chart => charts.find(drawing => drawing.chart === chart).download(),
};
const settings = {
  responsive: true,
  displaylogo: false,
  displayModeBar: touch ? false : "hover",
  modeBarButtons: [[camera, "resetScale2d"]],  // plotly's default has one that uploads the chart
  plotlyServerURL: "",
};

// On paper a chart is as wide as the sheet: a viewBox lets the drawing shrink to that.
function fit(chart) {
  const {width, height} = chart._fullLayout;
  chart.style.setProperty("--shape", width + " / " + height);
  for (const svg of chart.querySelectorAll(".main-svg")) {
    svg.setAttribute("viewBox", "0 0 " + width + " " + height);
  }
}

// A copy in the colours of the page. Only what is a colour is looked up: a name may be "white".
function themed(value, key = "") {
  if (Array.isArray(value)) return value.map(part => themed(part, key));
  if (value && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, themed(v, k)]));
  }
  return dark.matches && key.endsWith("color") && onDark[value] || value;
}

// The names are escaped for plotly; as text of the page they are not.
function unescaped(name) {
  return name.replace(/&(lt|gt|amp);/g, (_, sign) => ({lt: "<", gt: ">", amp: "&"})[sign]);
}

function element(kind, name, parent) {
  const made = document.createElement(kind);
  made.className = name;
  parent?.append(made);
  return made;
}

// Labels of an axis with ticks of its own, without those that would overlap the one before.
function thinned(axis, width) {
  if (!axis.tickvals) return;
  const places = axis.tickvals.map(Math.log10);
  const scale = 0.86 * width / (places.at(-1) - places[0] || 1);
  let end = -Infinity;
  axis.ticktext = axis.ticktext.map((words, i) => {
    const place = scale * (places[i] - places[0]), half = 4.5 * words.length + 3;
    if (place - half < end) return "";
    end = place + half;
    return words;
  });
}

class Drawing {
  constructor(chart) {
    this.chart = chart;
    this.spec = JSON.parse(chart.nextElementSibling.textContent);
    for (const trace of this.spec.data) trace.x = this.spec.xs[trace.x];
    this.views = this.spec.layout.updatemenus?.[0]?.buttons ?? [];
    this.view = 0;
    this.groups = new Map();  // by name: the trace whose line the legend shows
    this.off = new Set();
    for (const trace of this.spec.data) {
      const group = trace.legendgroup ?? trace.name;
      if (trace.showlegend === false || this.groups.has(group)) continue;
      this.groups.set(group, trace);
    }
    for (const trace of this.spec.data) {
      if (trace.visible === "legendonly") this.off.add(trace.legendgroup ?? trace.name);
    }
    this.addButtons();
    if (this.spec.layout.showlegend) this.addLegend();
  }

  addButtons() {
    if (this.views.length < 2) return;
    const row = element("div", "views");
    this.buttons = this.views.map((view, i) => {
      const button = element("button", "", row);
      button.textContent = view.label;
      button.onclick = () => { this.view = i; this.draw(); };
      return button;
    });
    this.chart.before(row);
  }

  addLegend() {
    const legend = element("div", "legend");
    const more = element("details", "");
    element("summary", "", more).textContent = this.off.size + " settings not chosen";
    const folded = element("div", "legend", more);
    this.entries = new Map();
    for (const [group, trace] of this.groups) {
      const button = element("button", "entry", this.off.has(group) ? folded : legend);
      button.innerHTML = '<svg width="34" height="10"><line x1="1" x2="33" y1="5" y2="5"/></svg>';
      button.append(unescaped(trace.name));
      button.onclick = () => {
        if (!this.off.delete(group)) this.off.add(group);
        this.toggle();
      };
      this.entries.set(group, button);
    }
    this.chart.after(legend);
    if (this.off.size) legend.after(more);
  }

  figure() {
    const data = themed(this.spec.data), layout = themed(this.spec.layout);
    const [shown, changes] = this.views[this.view]?.args ?? [{}, {}];
    for (const [path, value] of Object.entries(changes)) {
      const [axis, name] = path.split(".");
      layout[axis][name] = value;
    }
    data.forEach((trace, i) => {
      const isOfView = (shown.visible?.[i] ?? trace.visible) !== false;
      trace.visible = isOfView && !this.off.has(trace.legendgroup ?? trace.name);
    });
    delete layout.updatemenus;
    layout.showlegend = false;
    layout.margin.t = Math.min(layout.margin.t, layout.annotations?.length ? 30 : 12);
    layout.dragmode = touch ? false : "zoom";  // a finger scrolls
    layout.font.family = getComputedStyle(document.body).fontFamily;
    thinned(layout.xaxis, this.chart.clientWidth - 80);
    return {data, layout};
  }

  draw() {
    return this.drawing = this.drawNow();
  }

  async drawNow() {
    const {data, layout} = this.figure();
    const bar = this.entries && settings.displayModeBar;  // it would cover words of the others
    this.buttons?.forEach((button, i) => button.ariaPressed = i === this.view);
    this.showEntries();
    await Plotly.react(this.chart, data, layout, {...settings, displayModeBar: bar ?? false});
    fit(this.chart);
  }

  // Unlike draw(), this keeps a zoom.
  toggle() {
    this.showEntries();
    const visible = this.figure().data.map(trace => trace.visible);
    return this.drawing = Plotly.restyle(this.chart, {visible}).then(() => fit(this.chart));
  }

  showEntries() {
    for (const [group, button] of this.entries ?? []) {
      const {color, dash} = themed(this.groups.get(group).line);
      button.ariaPressed = !this.off.has(group);
      button.querySelector("line").style.cssText =
        "stroke: " + color + "; stroke-dasharray: " + (DASHES[dash] ?? "");
    }
  }

  download() {
    const {data, layout} = this.figure();
    layout.showlegend = this.spec.layout.showlegend;
    const height = this.chart.clientHeight + 120;  // for the legend
    return Plotly.downloadImage({data, layout}, {format: "png", width: 1100, height});
  }
}

// One chart after another, so that the page can be read and scrolled meanwhile.
async function drawAll() {
  for (const chart of document.querySelectorAll(".chart")) {
    const drawing = new Drawing(chart);
    await drawing.draw();
    chart.on("plotly_afterplot", () => fit(chart));
    charts.push(drawing);
    await new Promise(next => setTimeout(next));
  }
}
const drawn = drawAll();

let width = innerWidth;
dark.addEventListener("change", () => charts.forEach(chart => chart.draw()));
addEventListener("resize", () => {
  if (innerWidth !== width) charts.forEach(chart => chart.draw());
  width = innerWidth;
});
