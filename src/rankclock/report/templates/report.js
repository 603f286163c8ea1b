/* Draws the panels. All numbers come from the JSON block of the page, in ns; nothing is computed but positions. */
(function () {
  "use strict";
  var data = JSON.parse(document.getElementById("data").textContent);
  var css = function (name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); };
  var drawn = [];
  var scale = "compressed";

  // ---- numbers and scales ------------------------------------------------------------------------------------
  function span(ns) {
    var size = Math.abs(ns);
    var units = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]];
    for (var i = 0; i < units.length; i++) {
      if (size >= units[i][0] * 0.9995) { return Number((ns / units[i][0]).toPrecision(3)) + " " + units[i][1]; }
    }
    return Math.round(ns) + " ns";
  }
  function signed(ns) { return (ns > 0 ? "+" : "") + span(ns); }
  // The compressed scale: linear up to the core (-1 to 1), then DECADE units for each factor of ten.
  var DECADE = 0.35, PLOT_PX = 170, TICK_PX = 14, PRINTED_PX = 340;
  function compress(ns) {
    if (ns === null) { return null; }
    var size = Math.abs(ns) / data.core_ns;
    return Math.sign(ns) * (size <= 1 ? size : 1 + DECADE * Math.log10(size));
  }
  function place(ns, kind) { return kind === "compressed" ? compress(ns) : ns; }

  function compressedTicks(low, high) {
    // Most wanted first; a tick that would touch one already there is left out.
    var wanted = [0, data.core_ns, -data.core_ns], decades = [];
    for (var ns = 1000; ns <= 1e12; ns *= 10) { if (ns > data.core_ns) { decades.push(ns); } }
    decades.reverse();
    [high, low].forEach(function (end) {
      var outermost = decades.filter(function (ns) { return compress(ns) <= Math.abs(end); })[0];
      if (outermost) { wanted.push(Math.sign(end) * outermost); }
    });
    decades.forEach(function (ns) { if (Math.log10(ns) % 3 === 0) { wanted.push(ns, -ns); } });
    wanted.push(data.core_ns / 2, -data.core_ns / 2);
    decades.forEach(function (ns) { wanted.push(ns, -ns); });
    var apart = TICK_PX * (high - low) / PLOT_PX, taken = [];
    wanted.forEach(function (ns) {
      var at = compress(ns);
      if (at < low || at > high) { return; }
      if (taken.every(function (other) { return Math.abs(compress(other) - at) >= apart; })) { taken.push(ns); }
    });
    return { tickvals: taken.map(compress), ticktext: taken.map(function (ns) { return ns ? signed(ns) : "0"; }) };
  }
  function linearTicks(reach) {
    var step = Math.pow(10, Math.floor(Math.log10(reach)));
    while (reach / step < 2) { step /= 2; }
    while (reach / step >= 4) { step *= 2; }
    var values = [];
    for (var ns = -Math.floor(reach / step) * step; ns <= reach; ns += step) { values.push(ns); }
    return { tickvals: values, ticktext: values.map(function (ns) { return ns ? signed(ns) : "0"; }) };
  }
  function ends(panel) {
    // The lowest and the highest point of everything that a panel draws, never less than the core.
    var low = -data.core_ns, high = data.core_ns;
    function stretch(ns) { if (ns !== null) { low = Math.min(low, ns); high = Math.max(high, ns); } }
    panel.measured.lo.forEach(stretch);
    panel.measured.hi.forEach(stretch);
    panel.true.forEach(stretch);
    ["lo", "hi"].forEach(function (end) {
      panel.claimed[end].forEach(function (ns, i) { if (panel.claims_reference[i]) { stretch(ns); } });
    });
    return [low, high];
  }
  function reachOf(panel, share) {
    var all = [];
    panel.measured.lo.forEach(function (lo, i) {
      if (lo !== null) { all.push(Math.max(Math.abs(lo), Math.abs(panel.measured.hi[i]))); }
    });
    panel.true.forEach(function (ns) { if (ns !== null) { all.push(Math.abs(ns)); } });
    all.sort(function (a, b) { return a - b; });
    return all.length ? Math.max(all[Math.min(all.length - 1, Math.floor(all.length * share))], 100) : 1000;
  }

  // ---- traces ------------------------------------------------------------------------------------------------
  function band(panel, kind, only, colour) {
    // One closed outline a stretch without gaps: an unknown sample ends a band, it is never bridged.
    var x = [], y = [], xs = [], los = [], his = [];
    function close() {
      if (xs.length) {
        x = x.concat(xs, xs.slice().reverse(), [null]);
        y = y.concat(his, los.slice().reverse(), [null]);
      }
      xs = []; los = []; his = [];
    }
    panel.t.forEach(function (t, i) {
      if (panel[kind].lo[i] === null || (only && !only[i])) { close(); return; }
      xs.push(t); los.push(place(panel[kind].lo[i], panel.scale)); his.push(place(panel[kind].hi[i], panel.scale));
    });
    close();
    return { x: x, y: y, mode: "lines", line: { width: 0.6, color: css("--" + colour) }, fill: "toself",
      fillcolor: css("--" + colour + "-band"), hoverinfo: "skip" };
  }
  function line(panel, kind, only, dash) {
    var columns = panel[kind];
    var words = columns.estimate.map(function (ns, i) {
      if (ns === null) { return ""; }
      var bound = Math.max(columns.hi[i] - ns, ns - columns.lo[i]);
      return kind + " " + signed(ns) + " ± " + span(bound) + "<br>" + escape(columns.words[columns.word[i]]) +
        "<br>" + span(columns.age[i]) + " old";
    });
    return { x: panel.t, y: columns.estimate.map(function (ns, i) { return only && !only[i] ? null : place(ns, panel.scale); }),
      mode: "lines", line: { width: 1.6, color: css("--" + kind), dash: dash }, text: words, hoverinfo: "text+x", connectgaps: false };
  }
  function escape(text) {
    return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  }
  function traces(panel) {
    var same = panel.claims_reference, other = same.map(function (is) { return 1 - is; });
    var truth = { x: panel.t, y: panel.true.map(function (ns) { return place(ns, panel.scale); }), mode: "lines",
      line: { width: 1.2, color: css("--true") }, hoverinfo: "text+x",
      text: panel.true.map(function (ns) { return ns === null ? "" : "true " + signed(ns); }) };
    var missed = panel.t.filter(function (_, i) { return panel.missed[i]; });
    var marks = { x: missed, y: panel.true.filter(function (_, i) { return panel.missed[i]; }).map(function (ns) { return place(ns, panel.scale); }),
      mode: "markers", marker: { symbol: "x", size: 11, color: css("--bad") }, hoverinfo: "text+x", text: missed.map(function () { return "the bound misses the truth"; }) };
    return [band(panel, "claimed", same, "claimed"), band(panel, "measured", null, "measured"),
      line(panel, "claimed", same, "solid"), line(panel, "claimed", other, "dot"), line(panel, "measured", null, "solid"), truth, marks];
  }

  // ---- panels ------------------------------------------------------------------------------------------------
  function marks(panel, around) {
    var shapes = panel.unknown.map(function (stretch) {
      return { type: "rect", xref: "x", yref: "paper", x0: stretch[0], x1: stretch[1], y0: 0, y1: 1, line: { width: 0 },
        fillcolor: css("--unknown-stretch"), layer: "below" };
    });
    function upright(x, colour, dash) {
      shapes.push({ type: "line", xref: "x", yref: "paper", x0: x, x1: x, y0: 0, y1: 1, line: { color: css(colour), width: 1.4, dash: dash } });
    }
    if (panel.scale === "compressed") {
      [-1, 1].forEach(function (y) {
        shapes.push({ type: "line", xref: "paper", yref: "y", x0: 0, x1: 1, y0: y, y1: y, line: { color: css("--soft"), width: 1, dash: "dot" } });
      });
    }
    if (around) {
      upright(0, "--bad", "solid");
      if (data.taken_over_s !== null) { upright(data.taken_over_s, "--good", "dash"); }
    } else {
      data.phases.forEach(function (phase, i) {
        if (i % 2 && phase[2] !== null) {
          shapes.push({ type: "rect", xref: "x", yref: "paper", x0: phase[1], x1: phase[2], y0: 0, y1: 1, line: { width: 0 },
            fillcolor: css("--phase"), layer: "below" });
        }
      });
    }
    return shapes;
  }
  function labels(panel, around) {
    function label(x, y, text, colour, anchor) {
      return { xref: "x", yref: "paper", x: x, y: y, yanchor: "bottom", xanchor: anchor || "left", text: text, showarrow: false,
        font: { size: 11, color: css(colour) } };
    }
    if (around) {
      var found = [label(0, 1, "killed", "--bad", "right")];
      if (data.taken_over_s !== null) { found.push(label(data.taken_over_s, 1, "taken over", "--good")); }
      return found;
    }
    return data.phases.map(function (phase, i) {
      var end = phase[2] === null ? panel.t[panel.t.length - 1] : phase[2];
      return label((phase[1] + end) / 2, 1, String(i + 1), "--soft", "center");
    });
  }
  function vertical(panel, reach) {
    if (panel.scale === "linear") {
      return Object.assign({ range: [-reach * 1.08, reach * 1.08] }, linearTicks(reach));
    }
    var both = ends(panel).map(compress);
    return Object.assign({ range: [both[0] - 0.08, both[1] + 0.08] }, compressedTicks(both[0] - 0.03, both[1] + 0.03));
  }
  function horizontal(panel, around) {
    var all = around ? data.takeover : data.panels;
    return [Math.min.apply(null, all.map(function (p) { return p.t[0]; })),
      Math.max.apply(null, all.map(function (p) { return p.t[p.t.length - 1]; }))];
  }
  function layout(panel, reach, around) {
    return { height: 230, margin: { l: 66, r: 12, t: 20, b: 34 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: css("--page"),
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: css("--ink") }, showlegend: false,
      hovermode: "closest", dragmode: "zoom",
      xaxis: { gridcolor: css("--line"), zeroline: false, ticksuffix: " s", nticks: 9, showline: true, linecolor: css("--line"),
        range: horizontal(panel, around) },
      yaxis: Object.assign({ gridcolor: css("--line"), zeroline: true, zerolinecolor: css("--soft") }, vertical(panel, reach)),
      shapes: marks(panel, around), annotations: labels(panel, around) };
  }
  function frame(panel, host) {
    var box = document.createElement("div");
    box.className = "panel";
    var title = document.createElement("h3");
    title.textContent = panel.node;
    var note = document.createElement("small");
    var missed = panel.missed.reduce(function (sum, is) { return sum + is; }, 0);
    note.textContent = missed ? missed + (missed === 1 ? " bound misses" : " bounds miss") + " the truth" :
      (panel.method || "unknown: never measured") + ", " + panel.drawn + " of " + panel.samples + " samples drawn";
    if (missed) { note.className = "bad"; }
    title.appendChild(note);
    var plot = document.createElement("div");
    box.appendChild(title);
    box.appendChild(plot);
    host.appendChild(box);
    return plot;
  }
  function draw(item) {
    item.panel.scale = item.around ? "linear" : scale;
    var reach = item.reach || data.core_ns * 1.2;
    Plotly.react(item.plot, traces(item.panel), layout(item.panel, reach, item.around),
      { displaylogo: false, responsive: true, displayModeBar: false });
  }
  function drawAll() { drawn.forEach(draw); }

  var offsets = document.getElementById("offsets");
  data.panels.forEach(function (panel) { drawn.push({ panel: panel, plot: frame(panel, offsets), around: false }); });
  var around = document.getElementById("takeover");
  if (around) {
    var reaches = data.takeover.map(function (panel) { return reachOf(panel, 0.999); });
    var reach = Math.max.apply(null, reaches.concat([100])) * 1.1;
    data.takeover.forEach(function (panel) {
      drawn.push({ panel: panel, plot: frame(panel, around), around: true, reach: reach });
    });
  }
  drawAll();

  // ---- what a reader can change ------------------------------------------------------------------------------
  document.getElementById("core").textContent = span(data.core_ns);
  var names = document.getElementById("phases");
  names.textContent = data.phases.length ? "Phases (numbers above the pictures): " : "";
  data.phases.forEach(function (phase, i) {
    var number = document.createElement("b");
    number.textContent = i + 1;
    names.appendChild(number);
    names.appendChild(document.createTextNode(" " + phase[0] + (i + 1 < data.phases.length ? ", " : ".")));
  });
  document.querySelectorAll("#scales button").forEach(function (button) {
    button.addEventListener("click", function () {
      scale = button.dataset.scale;
      document.querySelectorAll("#scales button").forEach(function (other) {
        other.setAttribute("aria-pressed", String(other === button));
      });
      drawAll();
    });
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  matchMedia("print").addEventListener("change", drawAll);
  // While a page is printed its layout is still the screen's: the pictures are told the width of half a sheet.
  window.addEventListener("beforeprint", function () {
    drawn.forEach(function (item) { Plotly.relayout(item.plot, { width: PRINTED_PX }); });
  });
  window.addEventListener("afterprint", function () {
    drawn.forEach(function (item) { Plotly.relayout(item.plot, { width: null, autosize: true }); });
  });
})();
