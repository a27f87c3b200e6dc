"use strict";

const touch = matchMedia("(pointer: coarse)").matches;
const settings = {
  responsive: true,
  displaylogo: false,
  displayModeBar: touch ? false : "hover",
  modeBarButtons: [["toImage", "resetScale2d"]],  // plotly's default has one that uploads the chart
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

async function draw(chart) {
  const {data, layout} = JSON.parse(chart.nextElementSibling.textContent);
  layout.dragmode = touch ? false : "zoom";  // a finger scrolls
  layout.font.family = getComputedStyle(document.body).fontFamily;
  await Plotly.newPlot(chart, data, layout, settings);
  fit(chart);
  chart.on("plotly_afterplot", () => fit(chart));
  await new Promise(next => setTimeout(next));
}

// One chart after another, so that the page can be read and scrolled meanwhile.
async function drawAll() {
  for (const chart of document.querySelectorAll(".chart")) await draw(chart);
}
const drawn = drawAll();
