from s4node import App, ProcessingElement
class Hello(ProcessingElement):
    def on_event(self, event): print(f"Hello {event.name}!")
app = App("hello")
app.create_input_stream("names", app.create_pe(Hello), key="name")
