// The site's search runs in a worker, which browsers refuse to start from a folder. There it runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.inside = this.start(frame, address);
    }

    async start(frame, address) {
      document.body.append(frame);
      const inside = frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = inside.document.createElement("script");
      script.src = new URL(address, location.href);
      await new Promise((resolve, reject) => {
        script.onload = resolve;
        script.onerror = reject;
        inside.document.body.append(script);
      });
      return inside;
    }

    async postMessage(data) {
      const inside = await this.inside;
      inside.dispatchEvent(new inside.MessageEvent("message", { data }));
    }
  };
}
