// Draws the page's charts with plotly.js in the page's colours, light or dark; nothing leaves the page.
"use strict";

(() => {
  const config = {
    responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "",
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
  };
  const charts = [...document.querySelectorAll(".chart")].map((figure) => ({
    root: figure.querySelector(".chart-root"),
    title: figure.dataset.title,
    ...JSON.parse(figure.querySelector("script").textContent),
  }));

  function layout(chart) {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = (own) => ({
      gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--faint"),
      tickfont: { color: colour("--muted") }, automargin: true, ...own,
    });
    return {
      font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: colour("--ink") },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 56, r: 12, t: 12, b: 48 }, hovermode: "x unified", dragmode: "zoom",
      hoverlabel: { bgcolor: colour("--raised"), bordercolor: colour("--line"), font: { color: colour("--ink") } },
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", bgcolor: "rgba(0,0,0,0)" },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--faint"), activecolor: colour("--accent") },
      ...chart.layout, xaxis: axis(chart.layout.xaxis), yaxis: axis(chart.layout.yaxis),
    };
  }

  function draw(chart) {
    chart.root.setAttribute("role", "img");
    chart.root.setAttribute("aria-label", chart.title);
    Plotly.react(chart.root, chart.data, layout(chart), config);
  }

  for (const chart of charts) {
    chart.root.replaceChildren();
    draw(chart);
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach(draw));
})();
