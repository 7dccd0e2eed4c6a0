// A page that was opened from a folder may start no worker: its script, which is the search, runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = Object.assign(document.createElement("iframe"), { hidden: true });
      this.ready = new Promise((loaded, failed) => {
        const filled = () => {
          const inside = this.frame.contentWindow;
          inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          const script = inside.document.createElement("script");
          inside.document.body.append(Object.assign(script, { src: url, onload: loaded, onerror: failed }));
        };
        this.frame.addEventListener("load", filled, { once: true });
        document.body.append(this.frame);
      });
    }

    async postMessage(data) {
      await this.ready;
      this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
